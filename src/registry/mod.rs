//! Which identifiers have which verified models on this machine.
//!
//! Owns the folder layout `<models>/<identifier>/build/<component>/`. A component whose folder is absent is not
//! installed; one that is present but damaged is an error, never silently skipped. Runs on the starting thread.

pub mod bundle;
pub mod causal;
pub mod export;
pub mod manifest;
pub mod prompts;
pub mod release;
pub mod sequence;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use bundle::{Bundle, BundleError, Unverified};
pub use manifest::Kind;
pub use release::{Release, ReleaseError};

use crate::domain::ModelId;

/// The models behind an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ComponentName {
    /// Text generator.
    Generator,
    /// Text classifier.
    Text,
    /// Image classifier.
    Image,
    /// Reader of text in images.
    Ocr,
}

impl ComponentName {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Generator, Self::Text, Self::Image, Self::Ocr];

    /// Name of its folder and metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Text => "text",
            Self::Image => "image",
            Self::Ocr => "ocr",
        }
    }

    /// The kind its manifest must state.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Generator => Kind::Generator,
            Self::Text => Kind::TextClassifier,
            Self::Image => Kind::ImageClassifier,
            Self::Ocr => Kind::TextReader,
        }
    }
}

impl fmt::Display for ComponentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the files of a component belong.
pub fn folder(models: &Path, id: ModelId, component: ComponentName) -> PathBuf {
    models.join(id.as_str()).join("build").join(component.as_str())
}

/// What is installed as a component of an identifier, its files not looked at yet; none where its folder is absent.
///
/// # Errors
/// [`BundleError`] for a manifest that is missing, malformed, or of another component.
pub fn installed(models: &Path, id: ModelId, component: ComponentName) -> Result<Option<Unverified>, BundleError> {
    let dir = folder(models, id, component);
    if !dir.is_dir() {
        return Ok(None);
    }
    let found = Unverified::read(&dir)?;
    if found.manifest().kind != component.kind() {
        return Err(BundleError::Malformed {
            path: dir.join(bundle::MANIFEST),
            reason: format!("it describes no {component} model"),
        });
    }
    Ok(Some(found))
}

/// Every installed, verified bundle.
#[derive(Debug, Default)]
pub struct Registry {
    bundles: BTreeMap<(ModelId, ComponentName), Arc<Bundle>>,
}

impl Registry {
    /// Opens what is installed below `models` for the given identifiers.
    ///
    /// # Errors
    /// The first [`BundleError`]: a damaged model must stop the start, not shrink the service.
    pub fn open(models: &Path, identifiers: &[ModelId]) -> Result<Self, BundleError> {
        let mut registry = Self::default();
        for &id in identifiers {
            for component in ComponentName::ALL {
                if let Some(found) = installed(models, id, component)? {
                    registry.insert(id, component, found.verified()?);
                }
            }
        }
        Ok(registry)
    }

    fn insert(&mut self, id: ModelId, component: ComponentName, bundle: Bundle) {
        // Two identifiers may stand on the same built model; it is then loaded once.
        let shared = self
            .bundles
            .iter()
            .find(|((_, name), other)| *name == component && other.digest() == bundle.digest())
            .map(|(_, other)| Arc::clone(other));
        self.bundles.insert((id, component), shared.unwrap_or_else(|| Arc::new(bundle)));
    }

    /// The bundle behind an identifier's component, if installed.
    pub fn get(&self, id: ModelId, component: ComponentName) -> Option<&Arc<Bundle>> {
        self.bundles.get(&(id, component))
    }

    /// Everything installed, ordered by identifier and component.
    pub fn iter(&self) -> impl Iterator<Item = (ModelId, ComponentName, &Arc<Bundle>)> {
        self.bundles.iter().map(|(&(id, component), bundle)| (id, component, bundle))
    }

    /// Whether nothing is installed.
    pub fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }
}
