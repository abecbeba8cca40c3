//! Sequence classifiers from elsewhere: their labels, and how they are fed.
//!
//! Owns how such a configuration is understood, which is as Hugging Face's text-classification pipeline understands it.
//! Refuses other tasks, because nothing here could feed them. Reads files; runs on the main thread.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use super::{
    export::{self, Export, ExportError},
    manifest::{Activation, Calibration, LabelSpec, LabelsSpec, Languages, TextClassifierSpec},
};
use crate::domain::Category;

/// Most tokens of a window.
const WINDOW: usize = 256;
/// As many of its positions a model may keep for itself: in one well-known family texts begin at the third.
const KEPT_POSITIONS: usize = 2;

/// Why a folder cannot be added as a classifier. Each message names the file or the label, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// Its files are not what is needed.
    #[error(transparent)]
    Export(#[from] ExportError),
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
    export: Export,
    labels: Vec<String>,
    activation: Activation,
    window: usize,
    pad_id: u32,
}

impl SequenceClassifier {
    /// Reads the configuration in `dir` and looks for the other files, the graph by the name `graph` if it has one of its
    /// own.
    ///
    /// # Errors
    /// [`SequenceError`] for a file that is missing, or a model of another task.
    pub fn open(dir: &Path, graph: Option<&Path>) -> Result<Self, SequenceError> {
        let path = export::config(dir);
        let (config, labels, activation) =
            understood(export::json(&path)?).map_err(|reason| ExportError::content(&path, reason))?;
        let positions = config.max_position_embeddings.map_or(WINDOW, |most| most.saturating_sub(KEPT_POSITIONS));
        Ok(Self {
            export: Export::open(dir, graph)?,
            labels,
            activation,
            window: positions.min(WINDOW),
            pad_id: config.pad_token_id.unwrap_or(0),
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

    /// The model's labels, in the order of its logits.
    pub fn labels(&self) -> &[String] {
        &self.labels
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
            languages: Languages::Any,
            ensemble: None,
            elsewhere: None,
        })
    }
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
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::registry::{
        Bundle,
        export::{Origin, Part},
        progress::Sums,
    };

    fn folder(config: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        fs::write(dir.path().join("model.onnx"), "graph").unwrap();
        dir
    }

    fn opened(config: &Value) -> Result<SequenceClassifier, String> {
        SequenceClassifier::open(folder(config).path(), None).map_err(|error| error.to_string())
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
        let model = SequenceClassifier::open(dir.path(), None).unwrap();
        let spec = model.spec([1, 2], &[("label 1".into(), Category::Hate)]).unwrap();
        let target = dir.path().join("text");
        let origin = Origin { name: "n".into(), source: "s".into(), licence: "MIT".into() };
        let sums = Sums::default();
        model.export().write(&target, origin, Part::TextClassifier(spec), &sums).unwrap();
        assert_eq!(sums.get(), [14, 14], "`inner`, `weights` and `{{}}`");
        let bundle = Bundle::open(&target).unwrap();
        assert_eq!(fs::read(bundle.graph()).unwrap(), b"inner");
        assert_eq!(fs::read(bundle.file("model.onnx_data")).unwrap(), b"weights");
        assert_eq!(bundle.manifest().files.len(), 3);
        let read = bundle.manifest().text_classifier.as_ref().unwrap().labels.clone().unwrap();
        assert_eq!((read.activation, read.order.len()), (Activation::Softmax, 2));
    }
}
