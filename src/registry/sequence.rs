//! Sequence classifiers from elsewhere, in the layout of Hugging Face's libraries: `config.json`, `tokenizer.json` and
//! `model.onnx` (or `onnx/model.onnx`), read, and written as a bundle.
//!
//! Owns how such a configuration is understood, which is as their text-classification pipeline understands it. Refuses
//! other tasks, because nothing here could feed them. Reads and copies files; runs on the main thread.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    bundle::{MANIFEST, hex, sha256},
    manifest::{
        Activation, Calibration, FORMAT, Kind, LabelSpec, LabelsSpec, Manifest, ManifestFile, TextClassifierSpec,
    },
};
use crate::domain::Category;

/// Most tokens of a window.
const WINDOW: usize = 256;
/// As many of its positions a model may keep for itself: in one well-known family texts begin at the third.
const KEPT_POSITIONS: usize = 2;
/// Files beside a graph that hold its weights, as exporters name them.
const WEIGHTS: [&str; 2] = ["model.onnx_data", "model.onnx.data"];

/// Why a folder cannot be added. Each message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// A file could not be read, copied or written.
    #[error("cannot use {} ({source}); give a folder with config.json, tokenizer.json and model.onnx, as \
             `optimum-cli export onnx --task text-classification` writes it", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration says too little or something that is not understood.
    #[error("{} is of no use here: {reason}", path.display())]
    Config {
        /// The configuration.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A label was mapped that the model does not have, or twice.
    #[error("the label {label:?} {fault}; the model's labels are {}", labels.join(", "))]
    Label {
        /// The label as given.
        label: String,
        /// What is wrong with it.
        fault: &'static str,
        /// The model's.
        labels: Vec<String>,
    },
}

/// What is needed of `config.json`.
#[derive(Debug, Deserialize)]
struct RawConfig {
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    id2label: BTreeMap<String, String>,
    problem_type: Option<String>,
    max_position_embeddings: Option<usize>,
    pad_token_id: Option<u32>,
}

/// A folder that holds a sequence classifier.
#[derive(Debug)]
pub struct SequenceClassifier {
    dir: PathBuf,
    graph: PathBuf,
    labels: Vec<String>,
    activation: Activation,
    window: usize,
    pad_id: u32,
}

/// What people should know of a model.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// Under which licence.
    pub licence: String,
}

impl SequenceClassifier {
    /// Reads the configuration in `dir` and looks for the other files.
    ///
    /// # Errors
    /// [`SequenceError`] for a file that is missing, or a model of another task.
    pub fn open(dir: &Path) -> Result<Self, SequenceError> {
        let path = dir.join("config.json");
        let text = fs::read(&path).map_err(file(&path))?;
        let config = serde_json::from_slice::<RawConfig>(&text).map_err(|error| error.to_string()).and_then(understood);
        let (config, labels, activation) =
            config.map_err(|reason| SequenceError::Config { path: path.clone(), reason })?;
        let nested = dir.join("onnx").join("model.onnx");
        let graph = if nested.is_file() { nested } else { dir.join("model.onnx") };
        for needed in [&graph, &dir.join("tokenizer.json")] {
            fs::File::open(needed).map_err(file(needed))?;
        }
        let positions = config.max_position_embeddings.map_or(WINDOW, |most| most.saturating_sub(KEPT_POSITIONS));
        Ok(Self {
            dir: dir.to_owned(),
            graph,
            labels,
            activation,
            window: positions.min(WINDOW),
            pad_id: config.pad_token_id.unwrap_or(0),
        })
    }

    /// The tokenizer definition.
    pub fn tokenizer(&self) -> PathBuf {
        self.dir.join("tokenizer.json")
    }

    /// How to feed the model and read its labels. `ends` are the tokens before and after a text.
    ///
    /// # Errors
    /// [`SequenceError::Label`] for a label that the model does not have, or that is mapped twice.
    pub fn spec(&self, ends: [u32; 2], map: &[(String, Category)]) -> Result<TextClassifierSpec, SequenceError> {
        let refuse = |label: &str, fault| {
            Err(SequenceError::Label { label: label.to_owned(), fault, labels: self.labels.clone() })
        };
        let mut categories = BTreeMap::new();
        for (label, category) in map {
            if !self.labels.contains(label) {
                return refuse(label, "does not exist");
            }
            if categories.insert(label, *category).is_some() {
                return refuse(label, "is mapped twice");
            }
        }
        let order = self
            .labels
            .iter()
            .map(|name| LabelSpec { name: name.clone(), category: categories.get(name).copied() })
            .collect();
        let [cls_id, sep_id] = ends;
        Ok(TextClassifierSpec {
            window: self.window,
            stride: self.window * 3 / 4,
            cls_id,
            sep_id,
            pad_id: self.pad_id,
            categories: Category::ALL.map(|category| category.as_str().to_owned()),
            // As the model says it: nobody has measured its operating points.
            calibration: [Calibration { point: 0.0, below: 1.0, above: 1.0 }; 5],
            expressibility: None,
            labels: Some(LabelsSpec { activation: self.activation, order }),
        })
    }

    /// Makes the folder `target` and writes the bundle into it, its manifest last.
    ///
    /// # Errors
    /// [`SequenceError::File`]
    pub fn write(&self, target: &Path, origin: Origin, spec: TextClassifierSpec) -> Result<(), SequenceError> {
        fs::create_dir(target).map_err(file(target))?;
        let beside = self.graph.parent().unwrap_or(&self.dir);
        let mut sources = vec![(self.graph.clone(), "model.onnx"), (self.tokenizer(), "tokenizer.json")];
        sources.extend(WEIGHTS.map(|name| (beside.join(name), name)).into_iter().filter(|(path, _)| path.is_file()));
        let mut files = Vec::with_capacity(sources.len());
        for (source, name) in sources {
            let copy = target.join(name);
            let bytes = fs::copy(&source, &copy).map_err(file(&source))?;
            files.push(ManifestFile { path: name.to_owned(), bytes, sha256: sha256(&copy).map_err(file(&copy))? });
        }
        let path = target.join(MANIFEST);
        let json = |error: serde_json::Error| SequenceError::File { path: path.clone(), source: error.into() };
        let fingerprint = hex(&Sha256::digest(serde_json::to_vec(&(&files, &spec)).map_err(json)?));
        let manifest = Manifest {
            format: FORMAT,
            kind: Kind::TextClassifier,
            name: origin.name,
            source: origin.source,
            licence: origin.licence,
            fingerprint,
            files,
            generator: None,
            text_classifier: Some(spec),
            image_classifier: None,
            text_reader: None,
        };
        let text = serde_json::to_string_pretty(&manifest).map_err(json)? + "\n";
        fs::write(&path, text).map_err(file(&path))
    }
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> SequenceError + '_ {
    move |source| SequenceError::File { path: path.to_owned(), source }
}

/// The labels in the order of the logits, and whether they exclude one another.
fn understood(config: RawConfig) -> Result<(RawConfig, Vec<String>, Activation), String> {
    if let Some(other) = config.architectures.iter().find(|name| !name.ends_with("ForSequenceClassification")) {
        return Err(format!("it is of a {other}; only models for sequence classification can be added"));
    }
    let labels: Vec<String> =
        (0..config.id2label.len()).map_while(|number| config.id2label.get(&number.to_string()).cloned()).collect();
    if labels.is_empty() || labels.len() != config.id2label.len() {
        return Err("its id2label does not name the labels 0, 1, 2 and so on; export the model anew".into());
    }
    let activation = match (config.problem_type.as_deref(), labels.len()) {
        (Some("multi_label_classification"), _) | (None | Some("single_label_classification"), 1) => {
            Activation::Sigmoid
        }
        (None | Some("single_label_classification"), _) => Activation::Softmax,
        (Some(other), _) => {
            return Err(format!(
                "its problem_type is {other}, which has no probabilities; it must be multi_label_classification or \
                 single_label_classification"
            ));
        }
    };
    Ok((config, labels, activation))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Bundle;

    fn folder(config: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        fs::write(dir.path().join("model.onnx"), "graph").unwrap();
        dir
    }

    fn opened(config: &Value) -> Result<SequenceClassifier, String> {
        SequenceClassifier::open(folder(config).path()).map_err(|error| error.to_string())
    }

    fn labels(count: usize) -> Value {
        (0..count).map(|number| (number.to_string(), json!(format!("label {number}")))).collect()
    }

    #[test]
    fn the_activation_is_the_one_of_the_problem() {
        for (problem, count, expected) in [
            (json!("multi_label_classification"), 3, Activation::Sigmoid),
            (json!("single_label_classification"), 3, Activation::Softmax),
            (json!("single_label_classification"), 1, Activation::Sigmoid),
            (Value::Null, 2, Activation::Softmax),
            (Value::Null, 1, Activation::Sigmoid),
        ] {
            let config = json!({"id2label": labels(count), "problem_type": problem});
            assert_eq!(opened(&config).unwrap().activation, expected, "{config}");
        }
        let regression = json!({"id2label": labels(1), "problem_type": "regression"});
        assert!(opened(&regression).unwrap_err().contains("problem_type is regression"));
    }

    #[test]
    fn labels_stand_in_the_order_of_their_numbers_even_above_ten() {
        let model = opened(&json!({"id2label": labels(12)})).unwrap();
        assert_eq!(model.labels, (0..12).map(|number| format!("label {number}")).collect::<Vec<_>>());
        for broken in [json!({}), json!({"1": "a", "2": "b"}), json!({"0": "a", "zero": "b"})] {
            assert!(opened(&json!({"id2label": broken})).unwrap_err().contains("id2label"), "{broken}");
        }
    }

    #[test]
    fn other_tasks_are_refused_by_name() {
        let config = json!({"id2label": labels(2), "architectures": ["LlamaForCausalLM"]});
        let error = opened(&config).unwrap_err();
        assert!(error.contains("it is of a LlamaForCausalLM; only models for sequence classification"), "{error}");
    }

    #[test]
    fn a_window_leaves_room_for_positions_that_the_model_keeps() {
        for (most, expected) in [(Value::Null, 256), (json!(512), 256), (json!(130), 128)] {
            let model = opened(&json!({"id2label": labels(2), "max_position_embeddings": most})).unwrap();
            assert_eq!(model.window, expected);
        }
    }

    #[test]
    fn a_label_is_mapped_once_and_exists() {
        let model = opened(&json!({"id2label": labels(2)})).unwrap();
        let spec = |map: &[(&str, Category)]| {
            let map: Vec<_> = map.iter().map(|(label, category)| ((*label).to_owned(), *category)).collect();
            model.spec([1, 2], &map).map(|spec| spec.labels).map_err(|error| error.to_string())
        };
        let found = spec(&[("label 1", Category::Hate)]).unwrap().unwrap().order;
        assert_eq!(found.iter().map(|label| label.category).collect::<Vec<_>>(), [None, Some(Category::Hate)]);
        let error = spec(&[("Label 1", Category::Hate)]).unwrap_err();
        assert_eq!(error, "the label \"Label 1\" does not exist; the model's labels are label 0, label 1");
        let error = spec(&[("label 1", Category::Hate), ("label 1", Category::Sexual)]).unwrap_err();
        assert!(error.contains("is mapped twice"), "{error}");
    }

    #[test]
    fn what_is_written_is_a_bundle_with_its_weights() {
        let dir = folder(&json!({"id2label": labels(2)}));
        // The graph of the inner folder is the one that is taken, with what lies beside it.
        fs::create_dir(dir.path().join("onnx")).unwrap();
        fs::write(dir.path().join("onnx/model.onnx"), "inner").unwrap();
        fs::write(dir.path().join("onnx/model.onnx_data"), "weights").unwrap();
        let model = SequenceClassifier::open(dir.path()).unwrap();
        let spec = model.spec([1, 2], &[("label 1".into(), Category::Hate)]).unwrap();
        let target = dir.path().join("text");
        let origin = Origin { name: "n".into(), source: "s".into(), licence: "MIT".into() };
        model.write(&target, origin, spec).unwrap();
        let bundle = Bundle::open(&target).unwrap();
        assert_eq!(fs::read(bundle.graph()).unwrap(), b"inner");
        assert_eq!(fs::read(bundle.file("model.onnx_data")).unwrap(), b"weights");
        assert_eq!(bundle.manifest().files.len(), 3);
        let read = bundle.manifest().text_classifier.as_ref().unwrap().labels.clone().unwrap();
        assert_eq!((read.activation, read.order.len()), (Activation::Softmax, 2));
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_that_writes_it() {
        let dir = folder(&json!({"id2label": labels(2)}));
        fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
        let error = SequenceClassifier::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json") && error.contains("optimum-cli export onnx"), "{error}");
    }
}
