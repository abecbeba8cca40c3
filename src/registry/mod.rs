//! Which identifiers have which verified models on this machine.
//!
//! Owns the folder layout `<models>/<identifier>/build/<component>/`, and `build-cuda` beside `build` for what was built
//! for GPUs. A component whose folder is absent is not installed; one that is present but damaged is an error, never
//! silently skipped. Runs on the starting thread, which takes further ones to hash the files.

pub mod bundle;
pub mod causal;
mod content;
pub mod export;
pub mod manifest;
pub mod progress;
pub mod prompts;
pub mod release;
pub mod sequence;
pub mod situations;

use std::{
    collections::BTreeMap,
    fmt,
    io::ErrorKind,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use bundle::{Bundle, BundleError, INSTALL, Unverified};
pub use manifest::Kind;
pub use progress::{Hashing, Progress};
pub use release::{Release, ReleaseError};

use crate::domain::{Device, ModelId};

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
    /// Judge of what the generator writes.
    Judge,
}

impl ComponentName {
    /// All five.
    pub const ALL: [Self; 5] = [Self::Generator, Self::Text, Self::Image, Self::Ocr, Self::Judge];

    /// Name of its folder and metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Text => "text",
            Self::Image => "image",
            Self::Ocr => "ocr",
            Self::Judge => "judge",
        }
    }

    /// The kind its manifest must state.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Generator => Kind::Generator,
            Self::Text => Kind::TextClassifier,
            Self::Image => Kind::ImageClassifier,
            Self::Ocr => Kind::TextReader,
            Self::Judge => Kind::AnswerJudge,
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
    read(&folder(models, id, component), component)
}

/// As [`installed`], for one device: on a GPU the component that was built for it, where there is one.
fn installed_for(
    device: Device,
    models: &Path,
    id: ModelId,
    component: ComponentName,
) -> Result<Option<Unverified>, BundleError> {
    let own = match device {
        Device::Cpu => None,
        Device::Cuda => read(&models.join(id.as_str()).join("build-cuda").join(component.as_str()), component)?,
    };
    own.map_or_else(|| installed(models, id, component), |found| Ok(Some(found)))
}

fn read(dir: &Path, component: ComponentName) -> Result<Option<Unverified>, BundleError> {
    match dir.metadata() {
        Ok(found) if found.is_dir() => {}
        // What may not be looked at is no more absent than it is sound.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(BundleError::Unreadable { path: dir.to_owned(), cause: error });
        }
        _ => return Ok(None),
    }
    let found = Unverified::read(dir)?;
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
    /// Opens what is installed below `models` for the given identifiers on the CPU, file by file.
    ///
    /// # Errors
    /// As [`open_for`](Self::open_for).
    pub fn open(models: &Path, identifiers: &[ModelId]) -> Result<Self, BundleError> {
        Self::open_for(Device::Cpu, models, identifiers, Hashing::unwatched(NonZeroUsize::MIN))
    }

    /// As [`open`](Self::open), for one device, and with the files hashed as `hashing` says.
    ///
    /// # Errors
    /// A [`BundleError`]: a damaged model must stop the start, not shrink the service. Of several it is the same one
    /// every time: the first manifest that cannot be used, else the first file that is missing or of another size, else
    /// the first of another hash.
    pub fn open_for(
        device: Device,
        models: &Path,
        identifiers: &[ModelId],
        hashing: Hashing<'_>,
    ) -> Result<Self, BundleError> {
        let (mut places, mut found) = (Vec::new(), Vec::new());
        for &id in identifiers {
            for component in ComponentName::ALL {
                if let Some(unverified) = installed_for(device, models, id, component)? {
                    places.push((id, component));
                    found.push(unverified);
                }
            }
        }
        let mut registry = Self::default();
        for ((id, component), bundle) in places.into_iter().zip(bundle::verified(found, hashing)?) {
            registry.insert(id, component, bundle);
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ONE: NonZeroUsize = NonZeroUsize::MIN;
    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    /// Opens with nobody looking.
    fn open(device: Device, models: &Path, ids: &[ModelId], threads: NonZeroUsize) -> Result<Registry, BundleError> {
        Registry::open_for(device, models, ids, Hashing::unwatched(threads))
    }

    /// Puts a fixture where set-up would, under a name.
    fn put(fixture: &str, name: &str, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        for entry in fs::read_dir(Path::new("tests/fixtures").join(fixture)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
        let manifest = fs::read_to_string(dir.join(bundle::MANIFEST)).unwrap();
        let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        manifest["name"] = name.into();
        fs::write(dir.join(bundle::MANIFEST), manifest.to_string()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_looked_at_is_told_and_not_taken_for_an_absent_one() {
        let models = tempfile::tempdir().unwrap();
        assert!(open(Device::Cpu, models.path(), &[ModelId::Alpha], ONE).unwrap().is_empty());
        // Rights do not stop a privileged user, who may run this; a file in the way stops everybody.
        fs::write(models.path().join("alpha-4o-mini"), "").unwrap();
        let error = open(Device::Cpu, models.path(), &[ModelId::Alpha], ONE).unwrap_err().to_string();
        assert!(error.contains("alpha-4o-mini") && error.contains("cannot read"), "{error}");
    }

    #[test]
    fn a_gpu_gets_what_was_built_for_it_and_the_rest_as_it_is() {
        let models = tempfile::tempdir().unwrap();
        let alpha = models.path().join("alpha-4o-mini");
        put("tiny-text", "for the CPU", &alpha.join("build/text"));
        put("tiny-text", "for a GPU", &alpha.join("build-cuda/text"));
        put("tiny-image", "for both", &alpha.join("build/image"));
        let names = |device| -> Vec<String> {
            let registry = open(device, models.path(), &[ModelId::Alpha], ONE).unwrap();
            registry.iter().map(|(_, _, bundle)| bundle.manifest().name.clone()).collect()
        };
        assert_eq!(names(Device::Cpu), ["for the CPU", "for both"]);
        assert_eq!(names(Device::Cuda), ["for a GPU", "for both"]);

        fs::write(alpha.join("build-cuda/text/model.onnx"), "damaged").unwrap();
        assert!(open(Device::Cuda, models.path(), &[ModelId::Alpha], ONE).is_err());
        assert_eq!(names(Device::Cpu), ["for the CPU", "for both"]);
    }

    /// What stops a start, and nothing where it goes on.
    fn fault(models: &Path, threads: NonZeroUsize) -> Option<String> {
        open(Device::Cpu, models, &ModelId::ALL, threads).err().map(|error| error.to_string())
    }

    /// Changes a byte, or changes it back.
    fn flip(path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        bytes[100] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    /// Installs all files of a component once more, by hard links.
    fn link(dir: &Path, target: &Path) {
        fs::create_dir_all(target).unwrap();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            fs::hard_link(&path, target.join(path.file_name().unwrap())).unwrap();
        }
    }

    #[test]
    fn among_many_files_the_first_damaged_one_is_named_however_many_threads_look() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path();
        put("tiny-text", "small", &models.join("alpha-4o-mini/build/text"));
        put("tiny-generator", "large", &models.join("beta-3-haiku/build/generator"));
        put("tiny-image", "smaller", &models.join("gamma-1.5-flash/build/image"));
        put("tiny-reader", "of many files", &models.join("delta-3.1/build/ocr"));
        let (small, large) = ("alpha-4o-mini/build/text/tokenizer.json", "beta-3-haiku/build/generator/model.onnx");
        let last = "delta-3.1/build/ocr/recogniser.onnx";
        for threads in [ONE, FOUR, NonZeroUsize::MAX] {
            assert_eq!(fault(models, threads), None);
            for path in [last, large, small] {
                flip(&models.join(path));
                let told = fault(models, threads).unwrap();
                assert!(told.contains(path) && told.contains("does not match its manifest"), "{told}");
            }
            for path in [small, large, last] {
                flip(&models.join(path));
            }
        }
        flip(&models.join(small));
        fs::remove_file(models.join(last)).unwrap();
        let told = fault(models, FOUR).unwrap();
        assert!(told.contains(last) && told.contains("cannot read"), "{told}");
    }

    #[test]
    fn hard_links_are_one_model_and_damaged_ones_none() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path();
        let dirs = [ModelId::Alpha, ModelId::Delta].map(|id| super::folder(models, id, ComponentName::Text));
        put("tiny-text", "shared", &dirs[0]);
        link(&dirs[0], &dirs[1]);
        let sums = progress::Sums::default();
        let hashing = Hashing { threads: FOUR, progress: &sums };
        let registry = Registry::open_for(Device::Cpu, models, &ModelId::ALL, hashing).unwrap();
        let bundle = |id| registry.get(id, ComponentName::Text).unwrap();
        assert!(Arc::ptr_eq(bundle(ModelId::Alpha), bundle(ModelId::Delta)));
        assert_eq!(sums.get(), [bundle(ModelId::Alpha).manifest().bytes(); 2], "it is read once");

        let graph = dirs[1].join("model.onnx");
        flip(&graph);
        assert!(fault(models, FOUR).unwrap().contains("alpha-4o-mini/build/text/model.onnx"));
        flip(&graph);
        assert_eq!(fault(models, FOUR), None);

        // One that is linked as it should be is not what another manifest asks for.
        let manifest = fs::read_to_string(dirs[1].join(bundle::MANIFEST)).unwrap();
        let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        manifest["files"][0]["sha256"] = "0".repeat(64).into();
        fs::remove_file(dirs[1].join(bundle::MANIFEST)).unwrap();
        fs::write(dirs[1].join(bundle::MANIFEST), manifest.to_string()).unwrap();
        assert!(fault(models, FOUR).unwrap().contains("delta-3.1/build/text/model.onnx"));
    }
}
