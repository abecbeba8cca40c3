//! Causal language models from elsewhere: how long their sequences are, how they end, and how they are asked.
//!
//! Owns how their configuration is understood. What the graph itself says is `runtime`'s. Reads files; runs on the main
//! thread.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{
    export::{self, Export, ExportError},
    prompts::Prompts,
};

/// Longest sequence that is made use of: our longest prompts and texts, with room to spare.
const MOST_WINDOW: usize = 4096;
/// Of a model that does not say; those without positions of their own have no limit.
const UNSTATED_WINDOW: usize = 2048;
/// Graphs of an older layout.
const OLDER: [&str; 3] = ["decoder_model_merged.onnx", "decoder_with_past_model.onnx", "decoder_model.onnx"];

/// What is needed of `config.json`.
#[derive(Debug, Deserialize)]
struct RawConfig {
    #[serde(default)]
    is_encoder_decoder: bool,
    max_position_embeddings: Option<usize>,
    /// The same in some architectures.
    n_positions: Option<usize>,
    #[serde(default)]
    eos_token_id: Ids,
}

/// What is needed of `generation_config.json`, which the libraries heed before the other.
#[derive(Debug, Default, Deserialize)]
struct RawGeneration {
    #[serde(default)]
    eos_token_id: Ids,
}

/// What is needed of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
struct RawTokenizer {
    #[serde(default)]
    bos_token: Token,
    #[serde(default)]
    eos_token: Token,
    #[serde(default)]
    add_bos_token: Option<bool>,
    #[serde(default)]
    chat_template: Templates,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
    #[default]
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Token {
    Bare(String),
    Whole {
        content: String,
    },
    #[default]
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Template>),
    #[default]
    None,
}

#[derive(Debug, Deserialize)]
struct Template {
    name: String,
    template: String,
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
            Self::None => Vec::new(),
        }
    }
}

impl Token {
    fn text(self) -> String {
        match self {
            Self::Bare(text) | Self::Whole { content: text } => text,
            Self::None => String::new(),
        }
    }
}

impl Templates {
    fn default_one(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => {
                templates.into_iter().find(|each| each.name == "default").map(|each| each.template)
            }
            Self::None => None,
        }
    }
}

/// A folder that holds a causal language model.
#[derive(Debug)]
pub struct CausalModel {
    export: Export,
    window: usize,
    stop_ids: Vec<u32>,
    template: Option<String>,
    bos: String,
    eos: String,
    opens_with_bos: Option<bool>,
}

impl CausalModel {
    /// Reads the configuration in `dir` and looks for the other files, the graph by the name `graph` if it has one of its
    /// own.
    ///
    /// # Errors
    /// [`ExportError`] for a file that is missing, or one that says what is of no use.
    pub fn open(dir: &Path, graph: Option<&Path>) -> Result<Self, ExportError> {
        let path = export::config(dir);
        let config: RawConfig = export::json(&path)?;
        if config.is_encoder_decoder {
            return Err(ExportError::content(
                &path,
                "it is of a model with an encoder; only those that continue a text can be added",
            ));
        }
        if let (None, Some(older)) = (graph, older(dir)) {
            return Err(ExportError::content(
                &dir.join(older),
                "it is of an older layout; export the model anew with Optimum 1.14 or later, `--task \
                 text-generation-with-past`",
            ));
        }
        let export = Export::open(dir, graph)?;
        let generation: RawGeneration = export::json_if_any(&dir.join("generation_config.json"))?;
        let mut stop_ids = generation.eos_token_id.list();
        if stop_ids.is_empty() {
            stop_ids = config.eos_token_id.list();
        }
        if stop_ids.is_empty() {
            return Err(ExportError::content(
                &path,
                "it has no eos_token_id, so an answer would never end; add the id of the token that ends a text",
            ));
        }
        let tokenizer: RawTokenizer = export::json_if_any(&dir.join("tokenizer_config.json"))?;
        let apart = dir.join("chat_template.jinja");
        let template = if apart.is_file() {
            Some(fs::read_to_string(&apart).map_err(export::file(&apart))?)
        } else {
            tokenizer.chat_template.default_one()
        };
        let positions = config.max_position_embeddings.or(config.n_positions);
        Ok(Self {
            export,
            window: positions.unwrap_or(UNSTATED_WINDOW).min(MOST_WINDOW),
            stop_ids,
            template,
            bos: tokenizer.bos_token.text(),
            eos: tokenizer.eos_token.text(),
            opens_with_bos: tokenizer.add_bos_token,
        })
    }

    /// Its files.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Its files alone.
    pub fn into_export(self) -> Export {
        self.export
    }

    /// Longest sequence, in tokens.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Tokens that end an answer; at least one.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// How the model is asked, in its own turns if it has any. `opening` is what its tokenizer puts before a text.
    ///
    /// # Errors
    /// [`ExportError`] for a chat template that is not understood.
    pub fn prompts(&self, opening: &str) -> Result<Prompts, ExportError> {
        let Some(template) = &self.template else {
            let said = match self.opens_with_bos {
                Some(true) => &self.bos,
                Some(false) => "",
                None => opening,
            };
            return Ok(Prompts::plain(said));
        };
        Prompts::chat(template, &self.bos, &self.eos).map_err(|reason| {
            ExportError::content(
                &self.export.tokenizer().with_file_name("tokenizer_config.json"),
                format!("its chat template cannot be used ({reason}); give prompts of your own with --prompts"),
            )
        })
    }
}

/// The graph of an older layout that stands where `model.onnx` should.
fn older(dir: &Path) -> Option<String> {
    let in_folder = |folder: &str, name: &str| {
        let place = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        dir.join(&place).is_file().then_some(place)
    };
    if ["", "onnx"].iter().any(|folder| in_folder(folder, "model.onnx").is_some()) {
        return None;
    }
    OLDER.iter().find_map(|name| ["", "onnx"].iter().find_map(|folder| in_folder(folder, name)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        fs::write(dir.path().join("model.onnx"), "graph").unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        dir
    }

    fn opened(files: &[(&str, Value)]) -> Result<CausalModel, String> {
        CausalModel::open(folder(files).path(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn the_window_is_what_the_model_has_and_no_more_than_is_needed() {
        for (config, expected) in [
            (json!({"max_position_embeddings": 1024}), 1024),
            (json!({"n_positions": 512}), 512),
            (json!({"max_position_embeddings": 131_072}), 4096),
            (json!({}), 2048),
        ] {
            let mut config = config;
            config["eos_token_id"] = json!(2);
            assert_eq!(opened(&[("config.json", config)]).unwrap().window(), expected);
        }
    }

    #[test]
    fn the_configuration_of_generation_says_how_answers_end() {
        let config = ("config.json", json!({"eos_token_id": 2}));
        assert_eq!(opened(std::slice::from_ref(&config)).unwrap().stop_ids(), [2]);
        let generation = ("generation_config.json", json!({"eos_token_id": [7, 9], "top_k": 4}));
        assert_eq!(opened(&[config, generation]).unwrap().stop_ids(), [7, 9]);
        let error = opened(&[("config.json", json!({"eos_token_id": null}))]).unwrap_err();
        assert!(error.contains("no eos_token_id"), "{error}");
    }

    #[test]
    fn a_chat_template_is_found_in_any_of_its_places() {
        let body = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}";
        let named = json!([{"name": "tool_use", "template": "{{ no }}"}, {"name": "default", "template": body}]);
        let config = ("config.json", json!({"eos_token_id": 2}));
        for template in [json!(body), named] {
            let model = opened(&[config.clone(), ("tokenizer_config.json", json!({"chat_template": template}))]);
            let prompts = model.unwrap().prompts("<s>").unwrap();
            assert!(prompts.tasks.reply.prefix.starts_with("<user>"), "{prompts:?}");
        }
        let dir = folder(&[config, ("tokenizer_config.json", json!({"chat_template": "{{ older }}"}))]);
        fs::write(dir.path().join("chat_template.jinja"), body).unwrap();
        assert!(CausalModel::open(dir.path(), None).unwrap().prompts("").is_ok());
    }

    #[test]
    fn a_template_that_fails_names_the_way_out() {
        let tokenizer = ("tokenizer_config.json", json!({"chat_template": "{% for %}"}));
        let model = opened(&[("config.json", json!({"eos_token_id": 2})), tokenizer]).unwrap();
        let error = model.prompts("").unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json") && error.contains("--prompts"), "{error}");
    }

    #[test]
    fn a_model_without_turns_begins_as_its_tokenizer_says() {
        let bos = |more: Value| {
            let mut tokenizer = json!({"bos_token": {"content": "<s>", "lstrip": false}});
            tokenizer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let files = [("config.json", json!({"eos_token_id": 2})), ("tokenizer_config.json", tokenizer)];
            opened(&files).unwrap().prompts("<opening>").unwrap().tasks.reply.prefix
        };
        assert!(bos(json!({"add_bos_token": true})).starts_with("<s>Each"));
        assert!(bos(json!({"add_bos_token": false})).starts_with("Each"));
        assert!(bos(json!({})).starts_with("<opening>Each"));
    }

    #[test]
    fn an_older_layout_and_an_encoder_are_told() {
        let dir = folder(&[("config.json", json!({"eos_token_id": 2}))]);
        fs::rename(dir.path().join("model.onnx"), dir.path().join("decoder_model_merged.onnx")).unwrap();
        let error = CausalModel::open(dir.path(), None).unwrap_err().to_string();
        assert!(error.contains("decoder_model_merged.onnx") && error.contains("Optimum 1.14"), "{error}");
        let error = opened(&[("config.json", json!({"is_encoder_decoder": true}))]).unwrap_err();
        assert!(error.contains("a model with an encoder"), "{error}");
    }
}
