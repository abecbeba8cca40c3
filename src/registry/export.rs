//! A model from elsewhere, as Hugging Face's libraries lay a folder out: `config.json`, `tokenizer.json`, and
//! `model.onnx`, `onnx/model.onnx` or a graph by another name.
//!
//! Owns what all tasks have in common: which task it is, where the files are, and how they become a bundle. Refuses
//! tasks that nothing here could feed. Reads and copies files; runs on the main thread.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::{
    bundle::{MANIFEST, copy, hex},
    manifest::{FORMAT, GeneratorSpec, Kind, Manifest, ManifestFile, TextClassifierSpec},
    progress::Progress,
};

/// What follows a graph's name in those of the files that hold its weights, as exporters name them.
const WEIGHTS: [&str; 2] = ["_data", ".data"];
const CONFIG: &str = "config.json";
const SEQUENCE: &str = "ForSequenceClassification";
const CAUSAL: [&str; 2] = ["ForCausalLM", "LMHeadModel"];

/// Why a folder cannot be added. Each message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file could not be read, copied or written.
    #[error("cannot use {} ({cause}); give a folder with config.json, tokenizer.json and model.onnx, as \
             `optimum-cli export onnx` writes it, and name a graph that is called otherwise with --graph", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file says too little or something that is not understood.
    #[error("{} is of no use here: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
}

impl ExportError {
    pub(super) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}

/// What a model was exported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Text to labels.
    Classification,
    /// Text to the next token, and so on.
    Generation,
}

impl Task {
    /// What the configuration in `dir` says; none where it names no architecture.
    ///
    /// # Errors
    /// [`ExportError`] for a folder without a configuration, or a model of another task.
    pub fn of(dir: &Path) -> Result<Option<Self>, ExportError> {
        #[derive(Deserialize)]
        struct Architectures {
            #[serde(default)]
            architectures: Vec<String>,
        }
        let path = dir.join(CONFIG);
        let Architectures { architectures } = json(&path)?;
        let Some(name) = architectures.first() else { return Ok(None) };
        if name.ends_with(SEQUENCE) {
            Ok(Some(Self::Classification))
        } else if CAUSAL.iter().any(|ending| name.ends_with(ending)) {
            Ok(Some(Self::Generation))
        } else {
            Err(ExportError::content(
                &path,
                format!(
                    "it is of a {name}; only models for sequence classification (…{SEQUENCE}) and causal language \
                     models (…{}) can be added",
                    CAUSAL.join(", …")
                ),
            ))
        }
    }
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

/// How to drive the model, by its kind.
#[derive(Clone, Debug)]
pub enum Part {
    /// A sequence classifier.
    TextClassifier(TextClassifierSpec),
    /// A causal language model.
    Generator(GeneratorSpec),
}

/// The files of an exported model.
#[derive(Debug)]
pub struct Export {
    dir: PathBuf,
    graph: PathBuf,
}

impl Export {
    /// Looks for tokenizer and graph in `dir`, where `graph` may say which it is.
    ///
    /// # Errors
    /// [`ExportError::File`] for the one that is missing.
    pub fn open(dir: &Path, graph: Option<&Path>) -> Result<Self, ExportError> {
        let nested = dir.join("onnx").join("model.onnx");
        let graph = match graph {
            Some(named) => dir.join(named),
            None if nested.is_file() => nested,
            None => dir.join("model.onnx"),
        };
        let export = Self { dir: dir.to_owned(), graph };
        for needed in [export.graph.clone(), export.tokenizer()] {
            fs::File::open(&needed).map_err(file(&needed))?;
        }
        Ok(export)
    }

    /// The graph.
    pub fn graph(&self) -> &Path {
        &self.graph
    }

    /// The tokenizer definition.
    pub fn tokenizer(&self) -> PathBuf {
        self.dir.join("tokenizer.json")
    }

    /// Makes the folder `target` and writes the bundle into it, its manifest last.
    ///
    /// # Errors
    /// [`ExportError::File`]
    pub fn write(&self, target: &Path, origin: Origin, part: Part, progress: &dyn Progress) -> Result<(), ExportError> {
        fs::create_dir(target).map_err(file(target))?;
        let mut sources = vec![(self.graph.clone(), "model.onnx".to_owned())];
        sources.push((self.tokenizer(), "tokenizer.json".to_owned()));
        sources.extend(self.weights()?);
        // What cannot be read is told where it is copied.
        progress.begin(sources.iter().filter_map(|(source, _)| Some(fs::metadata(source).ok()?.len())).sum());
        let mut files = Vec::with_capacity(sources.len());
        for (source, name) in sources {
            let (bytes, sha256) = copy(&source, &target.join(&name), progress).map_err(file(&source))?;
            files.push(ManifestFile { path: name, bytes, sha256 });
        }
        let path = target.join(MANIFEST);
        let json = |error: serde_json::Error| ExportError::File { path: path.clone(), cause: error.into() };
        let (kind, generator, text_classifier) = match part {
            Part::TextClassifier(spec) => (Kind::TextClassifier, None, Some(spec)),
            Part::Generator(spec) => (Kind::Generator, Some(spec), None),
        };
        let decisive = serde_json::to_vec(&(&files, &generator, &text_classifier)).map_err(json)?;
        let manifest = Manifest {
            format: FORMAT,
            kind,
            name: origin.name,
            source: origin.source,
            licence: origin.licence,
            fingerprint: hex(&Sha256::digest(decisive)),
            files,
            generator,
            text_classifier,
            image_classifier: None,
            text_reader: None,
            answer_judge: None,
        };
        let text = serde_json::to_string_pretty(&manifest).map_err(json)? + "\n";
        // After a power cut a manifest must not name what is not there.
        let written = fs::File::create(&path).and_then(|mut manifest| {
            manifest.write_all(text.as_bytes())?;
            manifest.sync_all()?;
            fs::File::open(target)?.sync_all()
        });
        written.map_err(file(&path))
    }

    /// The files of the graph's weights, with the names that the graph knows them by.
    fn weights(&self) -> Result<Vec<(PathBuf, String)>, ExportError> {
        let beside = self.graph.parent().unwrap_or(&self.dir);
        let graph = self.graph.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut found = Vec::new();
        for entry in fs::read_dir(beside).map_err(file(beside))? {
            let path = entry.map_err(file(beside))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let rest = name.strip_prefix(graph).unwrap_or_default();
            if WEIGHTS.iter().any(|start| rest.starts_with(start)) && path.is_file() {
                found.push((path.clone(), name.to_owned()));
            }
        }
        found.sort();
        Ok(found)
    }
}

pub(super) fn config(dir: &Path) -> PathBuf {
    dir.join(CONFIG)
}

/// Reads a JSON file.
pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Result<T, ExportError> {
    let text = fs::read(path).map_err(file(path))?;
    serde_json::from_slice(&text).map_err(|error| ExportError::content(path, error.to_string()))
}

/// Reads a JSON file that need not be there.
pub(super) fn json_if_any<T: DeserializeOwned + Default>(path: &Path) -> Result<T, ExportError> {
    if path.exists() { json(path) } else { Ok(T::default()) }
}

pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> ExportError + '_ {
    move |cause| ExportError::File { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(config: &serde_json::Value) -> Result<Option<Task>, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), config.to_string()).unwrap();
        Task::of(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_architecture_tells_the_task() {
        for (name, expected) in [
            ("BertForSequenceClassification", Task::Classification),
            ("LlamaForCausalLM", Task::Generation),
            ("GPT2LMHeadModel", Task::Generation),
        ] {
            assert_eq!(task(&json!({"architectures": [name]})), Ok(Some(expected)));
        }
        assert_eq!(task(&json!({"id2label": {}})), Ok(None));
        let error = task(&json!({"architectures": ["T5ForConditionalGeneration"]})).unwrap_err();
        assert!(error.contains("it is of a T5ForConditionalGeneration; only models for sequence class"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_that_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model.onnx"), "graph").unwrap();
        for (error, name) in [
            (Export::open(dir.path(), None).unwrap_err(), "tokenizer.json"),
            (Task::of(dir.path()).unwrap_err(), CONFIG),
        ] {
            let error = error.to_string();
            assert!(error.contains(name) && error.contains("optimum-cli export onnx"), "{error}");
        }
    }

    #[test]
    fn a_graph_by_another_name_comes_with_its_own_weights() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["tokenizer.json", "model.onnx", "model.onnx_data", "model_quantized.onnx", "model_quantized.onnx_data"]
        {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let export = Export::open(dir.path(), Some(Path::new("model_quantized.onnx"))).unwrap();
        assert_eq!(fs::read(export.graph()).unwrap(), b"model_quantized.onnx");
        let weights = dir.path().join("model_quantized.onnx_data");
        assert_eq!(export.weights().unwrap(), [(weights, "model_quantized.onnx_data".to_owned())]);
        let error = Export::open(dir.path(), Some(Path::new("model_int8.onnx"))).unwrap_err().to_string();
        assert!(error.contains("model_int8.onnx (No such file") && error.contains("--graph"), "{error}");
    }
}
