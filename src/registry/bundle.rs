//! A bundle: the files of one built model, which exist as a [`Bundle`] only if every checksum matched.
//!
//! Reads and hashes files on the thread that starts the server; those of several bundles on further threads beside it,
//! which end with the last file.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs::{File, Metadata},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use sha2::{Digest, Sha256};

use super::{
    content,
    manifest::{Kind, Languages, Manifest, ManifestFile},
    progress::{Hashing, Progress, Unwatched},
};
use crate::domain::ModelId;

/// File name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";

/// What brings a model to its place, wherever models come from here. The first would also replace a model of one's own.
pub const INSTALL: &str =
    "run `make build`, unpack the bundle, or, for a model of your own, run `dichroic models add --replace`";

/// A verified model on disk.
#[derive(Debug)]
pub struct Bundle {
    dir: PathBuf,
    manifest: Manifest,
    digest: String,
    network: String,
    company: Vec<(ModelId, Arc<Bundle>)>,
}

/// Why a folder is no usable bundle. Each message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The manifest or a file could not be read.
    #[error("cannot read {}: {cause}; check who may read it, or install the model again: {INSTALL}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The manifest is not of the form this server knows.
    #[error("{} is not a manifest this server understands ({reason}); to install the model again, {INSTALL}", path.display())]
    Malformed {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file is not the one the manifest names.
    #[error("{} does not match its manifest (expected {expected}, found {found}); remove its folder, then {INSTALL}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Size or hash in the manifest.
        expected: String,
        /// Size or hash on disk.
        found: String,
    },
}

/// A folder whose manifest was read and whose files were not: good for a list, not for loading.
#[derive(Debug)]
pub struct Unverified {
    dir: PathBuf,
    manifest: Manifest,
    digest: String,
    network: String,
    company: Vec<(ModelId, Self)>,
}

impl Unverified {
    /// Reads `dir/manifest.json`, and those of its company, and checks their content.
    ///
    /// # Errors
    /// [`BundleError`] for a manifest that is missing or malformed.
    pub fn read(dir: &Path) -> Result<Self, BundleError> {
        let mut found = Self::read_alone(dir)?;
        for id in found.manifest.company() {
            let other = Self::read_alone(&dir.join(id.as_str()))?;
            check_company(&found.manifest, id, &other)
                .map_err(|reason| BundleError::Malformed { path: other.dir.join(MANIFEST), reason })?;
            found.company.push((id, other));
        }
        Ok(found)
    }

    fn read_alone(dir: &Path) -> Result<Self, BundleError> {
        let path = dir.join(MANIFEST);
        let text = std::fs::read(&path).map_err(unreadable(&path))?;
        let malformed = |reason: String| BundleError::Malformed { path: path.clone(), reason };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
        content::check(&manifest).map_err(malformed)?;
        let Manifest { files, text_classifier, .. } = manifest.alone();
        let network = serde_json::to_vec(&(files, text_classifier)).map_err(|error| malformed(error.to_string()))?;
        Ok(Self {
            dir: dir.to_owned(),
            digest: hex(&Sha256::digest(&text)),
            network: hex(&Sha256::digest(&network)),
            manifest,
            company: Vec::new(),
        })
    }

    /// What the manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// SHA-256 of the manifest.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Compares every listed file with its size and SHA-256: all that is wrong, file by file.
    pub fn faults(&self, progress: &dyn Progress) -> impl Iterator<Item = BundleError> {
        progress.begin(self.manifest.bytes());
        self.manifest.files.iter().filter_map(move |file| verify(&self.dir, file, progress).err())
    }

    /// The bundle, if every file matches.
    ///
    /// # Errors
    /// The first of [`Self::faults`].
    pub fn verified(self, progress: &dyn Progress) -> Result<Bundle, BundleError> {
        if let Some(fault) = self.faults(progress).next() {
            return Err(fault);
        }
        Ok(self.trusted())
    }

    fn trusted(self) -> Bundle {
        let Self { dir, manifest, digest, network, company } = self;
        let company = company.into_iter().map(|(id, other)| (id, Arc::new(other.trusted()))).collect();
        Bundle { dir, manifest, digest, network, company }
    }
}

/// The bundles of many folders in their order, if every file matches. What several bundles have by hard links is hashed
/// once.
///
/// # Errors
/// The first file, in the order of the folders and their manifests, that is missing or of another size; if there is
/// none, the first of another hash.
pub(super) fn verified(found: Vec<Unverified>, hashing: Hashing<'_>) -> Result<Vec<Bundle>, BundleError> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    for Unverified { dir, manifest, .. } in &found {
        for expected in &manifest.files {
            let path = dir.join(&expected.path);
            let file = check_size(&path, expected)?;
            // With the hash: where two manifests differ about one file, each is asked.
            if seen.insert((file.dev(), file.ino(), &expected.sha256)) {
                files.push((path, expected));
            }
        }
    }
    hashing.progress.begin(files.iter().map(|(_, expected)| expected.bytes).sum());
    check_hashes(files, hashing)?;
    Ok(found.into_iter().map(Unverified::trusted).collect())
}

/// As [`check_hash`] of each, on several threads.
fn check_hashes(files: Vec<(PathBuf, &ManifestFile)>, hashing: Hashing<'_>) -> Result<(), BundleError> {
    let Hashing { threads, progress } = hashing;
    let mut files: Vec<_> = files.into_iter().enumerate().collect();
    // One thread works on the largest from the beginning to the end, while others do the rest.
    files.sort_by_key(|(_, (_, expected))| Reverse(expected.bytes));
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    let work = || {
        while let Some((place, (path, expected))) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(fault) = check_hash(path, expected, progress) {
                let _ = tell.send((*place, fault));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.get().min(files.len()) {
            // Where the system refuses a thread, fewer do the same work.
            let _ = thread::Builder::new().name("checksums".into()).spawn_scoped(scope, work);
        }
        work();
    });
    drop(tell);
    told.into_iter().min_by_key(|(place, _)| *place).map_or(Ok(()), |(_, fault)| Err(fault))
}

impl Bundle {
    /// Reads `dir/manifest.json`, checks its content, then the size and SHA-256 of every file it lists.
    ///
    /// # Errors
    /// [`BundleError`] for anything missing, malformed or different.
    pub fn open(dir: &Path) -> Result<Self, BundleError> {
        Unverified::read(dir)?.verified(&Unwatched)
    }

    /// What the bundle is and how to drive it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// SHA-256 of the manifest, which covers every file: the identity of the model in metrics and `/readyz`.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// What tells the network in it from others, whatever company it has: SHA-256 of its own files and their use.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// The classifiers that judge beside or instead of this one, each with the identifier that it is of.
    pub fn company(&self) -> &[(ModelId, Arc<Self>)] {
        &self.company
    }

    /// The ONNX graph.
    pub fn graph(&self) -> PathBuf {
        self.file("model.onnx")
    }

    /// A file of the bundle.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The tokenizer definition (text models only).
    pub fn tokenizer(&self) -> PathBuf {
        self.file("tokenizer.json")
    }
}

/// Refuses company that is not of the files that the manifest lists: what is loaded must be what was hashed.
fn check_company(manifest: &Manifest, id: ModelId, other: &Unverified) -> Result<(), String> {
    let Unverified { manifest: theirs, digest, .. } = other;
    if theirs.kind != Kind::TextClassifier || !theirs.company().is_empty() {
        return Err("what judges beside or instead of another must be a text classifier without company".into());
    }
    let reads = theirs.text_classifier.as_ref().map(|spec| spec.languages);
    let elsewhere = manifest.text_classifier.as_ref().and_then(|spec| spec.elsewhere);
    if elsewhere == Some(id) && reads != Some(Languages::Any) {
        return Err("what judges other languages reads English alone".into());
    }
    let own = theirs.files.iter().map(|file| (file.path.as_str(), &file.sha256));
    for (name, sha256) in own.chain([(MANIFEST, digest)]) {
        let path = format!("{id}/{name}");
        if !manifest.files.iter().any(|file| file.path == path && file.sha256 == *sha256) {
            return Err(format!("the manifest above it lists no such {path}"));
        }
    }
    Ok(())
}

fn verify(dir: &Path, expected: &ManifestFile, progress: &dyn Progress) -> Result<(), BundleError> {
    let path = dir.join(&expected.path);
    // A file of another size need not be hashed.
    check_size(&path, expected)?;
    check_hash(&path, expected, progress)
}

fn check_size(path: &Path, expected: &ManifestFile) -> Result<Metadata, BundleError> {
    let file = std::fs::metadata(path).map_err(unreadable(path))?;
    if file.len() == expected.bytes {
        return Ok(file);
    }
    Err(BundleError::Mismatch {
        path: path.to_owned(),
        expected: format!("{} bytes", expected.bytes),
        found: format!("{} bytes", file.len()),
    })
}

fn check_hash(path: &Path, expected: &ManifestFile, progress: &dyn Progress) -> Result<(), BundleError> {
    let found = sha256(path, progress).map_err(unreadable(path))?;
    if found == expected.sha256 {
        return Ok(());
    }
    Err(BundleError::Mismatch { path: path.to_owned(), expected: expected.sha256.clone(), found })
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    move |cause| BundleError::Unreadable { path: path.to_owned(), cause }
}

/// Hex SHA-256 of a file.
pub(super) fn sha256(path: &Path, progress: &dyn Progress) -> io::Result<String> {
    hashed(&mut File::open(path)?, &mut io::sink(), progress)
}

/// Copies a file, down to the disk; answers its size and the hex SHA-256 of what was read. The copy is as readable as any
/// new file: exporters keep the weights beside a graph to their owner, and the server may be another user.
pub(super) fn copy(source: &Path, target: &Path, progress: &dyn Progress) -> io::Result<(u64, String)> {
    let (mut source, mut target) = (File::open(source)?, File::create(target)?);
    let sha256 = hashed(&mut source, &mut target, progress)?;
    target.sync_all()?;
    Ok((target.metadata()?.len(), sha256))
}

/// Hex SHA-256 of what is read, in pieces, and written to `copy`.
fn hashed(source: &mut impl Read, copy: &mut impl Write, progress: &dyn Progress) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let piece = match source.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => buffer.get(..read).unwrap_or_default(),
        };
        hash.update(piece);
        copy.write_all(piece)?;
        progress.advance(piece.len() as u64);
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{domain::Category, registry::manifest::VERDICTS};

    fn write(dir: &Path, model: &[u8], path: &str, sha256: &str) {
        std::fs::write(dir.join("model.onnx"), model).unwrap();
        let manifest = json!({
            "format": 1, "kind": "image_classifier", "name": "n", "source": "s", "licence": "MIT", "fingerprint": "f",
            "files": [{"path": "model.onnx", "bytes": 3, "sha256": sha256}, {"path": path, "bytes": 3, "sha256": sha256}],
            "image_classifier": {"size": 8, "classes": ["Drawing", "Hentai", "Neutral", "Porn", "Sexy"],
                "sexual": {"weights": {"Porn": 1.0}, "scale": 1.0, "bias": 0.0}}
        });
        std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    }

    #[test]
    fn only_the_very_files_of_the_manifest_make_a_bundle() {
        let dir = tempfile::tempdir().unwrap();
        let hash = hex(&Sha256::digest(b"abc"));
        write(dir.path(), b"abc", "model.onnx", &hash);
        assert_eq!(Bundle::open(dir.path()).unwrap().manifest().kind, Kind::ImageClassifier);

        write(dir.path(), b"abd", "model.onnx", &hash);
        assert!(matches!(Bundle::open(dir.path()), Err(BundleError::Mismatch { .. })));
        write(dir.path(), b"abcd", "model.onnx", &hash);
        assert!(matches!(Bundle::open(dir.path()), Err(BundleError::Mismatch { .. })));
    }

    #[test]
    fn heads_of_an_image_classifier_are_further_categories_each_once() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), b"abc", "model.onnx", &hex(&Sha256::digest(b"abc")));
        let path = dir.path().join("manifest.json");
        let plain: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let open = |heads: &[&str]| {
            let mut manifest = plain.clone();
            manifest["image_classifier"]["heads"] = json!(heads);
            std::fs::write(&path, manifest.to_string()).unwrap();
            Bundle::open(dir.path()).map(|bundle| bundle.manifest().image_classifier.clone().unwrap().heads)
        };
        assert_eq!(open(&["violence", "hate"]).unwrap(), [Category::Violence, Category::Hate]);
        assert_eq!(open(&[]).unwrap(), []);
        for heads in [&["sexual"][..], &["hate", "hate"], &["weapons"]] {
            assert!(matches!(open(heads), Err(BundleError::Malformed { .. })), "{heads:?}");
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let hash = hex(&Sha256::digest(b"abc"));
        for name in ["../model.onnx", "/etc/hostname", "a/b", ".", ""] {
            write(dir.path(), b"abc", name, &hash);
            assert!(matches!(Bundle::open(dir.path()), Err(BundleError::Malformed { .. })), "{name}");
        }
    }

    #[test]
    fn company_is_whole_listed_and_has_none_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().to_owned(), dir.path().join("alpha-4o-mini"));
        std::fs::create_dir(&other).unwrap();
        let fixture = Path::new("tests/fixtures/tiny-text");
        let names = ["model.onnx", "tokenizer.json", MANIFEST];
        for name in names {
            std::fs::copy(fixture.join(name), own.join(name)).unwrap();
            std::fs::copy(fixture.join(name), other.join(name)).unwrap();
        }
        let plain: serde_json::Value = serde_json::from_slice(&std::fs::read(fixture.join(MANIFEST)).unwrap()).unwrap();
        let ensemble = |members: &[&str], slope: f32| {
            let place = json!({"point": 0.0, "below": slope, "above": 1.0});
            json!({"ensemble": {"members": members, "calibration": vec![place; 5]}})
        };
        let write = |fields: serde_json::Value, lists: &[&str]| {
            let mut manifest = plain.clone();
            let fields = fields.as_object().unwrap().clone();
            manifest["text_classifier"].as_object_mut().unwrap().extend(fields);
            for name in lists {
                let bytes = std::fs::read(other.join(name)).unwrap();
                manifest["files"].as_array_mut().unwrap().push(json!({
                    "path": format!("alpha-4o-mini/{name}"), "bytes": bytes.len(),
                    "sha256": hex(&Sha256::digest(&bytes)),
                }));
            }
            std::fs::write(own.join(MANIFEST), manifest.to_string()).unwrap();
        };
        let elsewhere = json!({"languages": "english", "elsewhere": "alpha-4o-mini"});
        let refused = || Bundle::open(&own).unwrap_err().to_string();
        let single = Bundle::open(fixture).unwrap();

        write(ensemble(&["alpha-4o-mini"], 1.0), &names);
        let whole = Bundle::open(&own).unwrap();
        let [(ModelId::Alpha, found)] = whole.company() else { panic!("{whole:?}") };
        assert_eq!(found.graph(), other.join("model.onnx"));
        assert_eq!(found.digest(), single.digest());
        // The network is the same in any company, and another where it is used otherwise.
        assert_eq!([whole.network(), found.network()], [single.network(); 2]);
        write(elsewhere.clone(), &names);
        let reads_english = Bundle::open(&own).unwrap();
        assert_eq!(reads_english.company().len(), 1);
        assert_ne!(reads_english.network(), single.network());

        write(ensemble(&["alpha-4o-mini"], 1.0), &names[..2]);
        assert!(refused().contains("lists no such alpha-4o-mini/manifest.json"), "{}", refused());
        write(elsewhere, &names[1..]);
        assert!(refused().contains("lists no such alpha-4o-mini/model.onnx"), "{}", refused());
        write(ensemble(&["alpha-4o-mini"], 0.0), &names);
        assert!(refused().contains("slope is not positive"), "{}", refused());
        write(ensemble(&[], 1.0), &[]);
        assert!(refused().contains("no members"), "{}", refused());
        write(ensemble(&["alpha-4o-mini"; 2], 1.0), &names);
        assert!(refused().contains("one twice"), "{}", refused());
        for (weights, heard) in [(vec![0.7, 0.5], true), (vec![0.7], false), (vec![0.7, 0.0], false)] {
            let mut weighted = ensemble(&["alpha-4o-mini"], 1.0);
            weighted["ensemble"]["weights"] = json!(weights);
            write(weighted, &names);
            assert!(heard == Bundle::open(&own).is_ok() && (heard || refused().contains("a weight above 0")));
        }
        write(json!({"elsewhere": "alpha-4o-mini"}), &names);
        assert!(refused().contains("it reads everything"), "{}", refused());
        // A folder of nobody that is named is never followed.
        write(ensemble(&["beta-3-haiku"], 1.0), &names);
        assert!(refused().contains("leaves the folder"), "{}", refused());

        for path in ["alpha-4o-mini/../model.onnx", "alpha-4o-mini/a/b", "../alpha-4o-mini/x"] {
            write(ensemble(&["alpha-4o-mini"], 1.0), &names);
            let listed = std::fs::read_to_string(own.join(MANIFEST)).unwrap();
            std::fs::write(own.join(MANIFEST), listed.replace("alpha-4o-mini/model.onnx", path)).unwrap();
            assert!(refused().contains("leaves the folder"), "{}", refused());
        }
        let readable = std::fs::read_to_string(other.join(MANIFEST)).unwrap();
        let reads_english = readable.replacen("\"window\"", "\"languages\": \"english\", \"window\"", 1);
        std::fs::write(other.join(MANIFEST), reads_english).unwrap();
        write(json!({"languages": "english", "elsewhere": "alpha-4o-mini"}), &names);
        assert!(refused().contains("reads English alone"), "{}", refused());

        // Company of company would not be asked.
        write(ensemble(&["alpha-4o-mini"], 1.0), &names);
        std::fs::copy(own.join(MANIFEST), other.join(MANIFEST)).unwrap();
        write(ensemble(&["alpha-4o-mini"], 1.0), &names);
        assert!(refused().contains("without company"), "{}", refused());
    }

    #[test]
    fn a_judge_of_answers_says_what_the_server_reads() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.onnx"), "").unwrap();
        let write = |part: serde_json::Value| {
            let manifest = json!({
                "format": 1, "kind": "answer_judge", "name": "n", "source": "s", "licence": "MIT", "fingerprint": "f",
                "files": [{"path": "model.onnx", "bytes": 0, "sha256": hex(&Sha256::digest(""))}],
                "answer_judge": part,
            });
            std::fs::write(dir.path().join(MANIFEST), manifest.to_string()).unwrap();
            Bundle::open(dir.path()).map(|bundle| bundle.manifest().kind).map_err(|error| error.to_string())
        };
        let part = |text_tokens: usize| json!({"cls_id": 0, "sep_id": 2, "pad_id": 1, "text_tokens": text_tokens, "answer_tokens": 9});
        let open = |verdicts: [&str; 6], text_tokens: usize| {
            let mut part = part(text_tokens);
            part["verdicts"] = json!(verdicts);
            write(part)
        };
        assert_eq!(open(VERDICTS, 120), Ok(Kind::AnswerJudge));
        assert!(open(VERDICTS, 0).unwrap_err().contains("between 1 and 4,096 tokens"));
        let mut others = VERDICTS;
        others.swap(0, 1);
        assert!(open(others, 120).unwrap_err().contains("verdicts are not in the expected order"));
        assert!(write(part(120)).unwrap_err().contains("neither verdicts nor what was written"));
        let mut unlisted = part(120);
        unlisted["situations"] = json!("situations.json");
        assert!(write(unlisted).unwrap_err().contains("lists no situations.json"));
    }

    #[test]
    fn a_text_reader_has_all_its_files_and_bounded_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let hash = hex(&Sha256::digest(b"abc"));
        let open = |names: &[&str], most_pixels: u32| {
            let files: Vec<_> = names
                .iter()
                .map(|name| {
                    std::fs::write(dir.path().join(name), b"abc").unwrap();
                    json!({"path": name, "bytes": 3, "sha256": hash})
                })
                .collect();
            let manifest = json!({
                "format": 1, "kind": "text_reader", "name": "n", "source": "s", "licence": "MIT", "fingerprint": "f",
                "files": files,
                "text_reader": {
                    "detector": {
                        "multiple": 32, "least_pixels": 1000, "most_pixels": most_pixels, "most_side": 4096,
                        "threshold": 0.3, "box_threshold": 0.5, "unclip": 1.6,
                    },
                    "orientation": {"height": 48, "width": 192},
                    "recogniser": {
                        "height": 48, "least_width": 320, "width_step": 160, "most_width": 4000, "threshold": 0.5,
                    },
                },
            });
            std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            Bundle::open(dir.path()).map(|bundle| bundle.manifest().kind).map_err(|error| error.to_string())
        };
        assert_eq!(open(Kind::TextReader.files(), 1_600_000), Ok(Kind::TextReader));
        let three = &Kind::TextReader.files()[..3];
        assert!(open(three, 1_600_000).unwrap_err().contains("it lists no characters.json"));
        assert!(open(Kind::TextReader.files(), 999).unwrap_err().contains("the detector's input"));
    }

    #[test]
    fn a_generator_s_further_files_must_have_checksums_and_a_cache_of_ours_and_its_bounds_a_sense() {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new("tests/fixtures/tiny-generator");
        for name in ["model.onnx", "tokenizer.json"] {
            std::fs::copy(source.join(name), dir.path().join(name)).unwrap();
        }
        let plain = std::fs::read_to_string(source.join("manifest.json")).unwrap();
        for field in ["prefill", "products", "answer_tokens"] {
            let mut manifest: serde_json::Value = serde_json::from_str(&plain).unwrap();
            manifest["generator"][field] = "further".into();
            std::fs::write(dir.path().join("further"), "anything").unwrap();
            std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            let error = Bundle::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("it lists no further"), "{error}");

            manifest["generator"][field] = "model.onnx".into();
            std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            assert!(Bundle::open(dir.path()).is_ok());
            manifest["generator"]["cache"] = "growing".into();
            std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            let error = Bundle::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("neither prefill nor products nor answer_tokens"), "{error}");
        }
        // A bound that every answer would be above.
        let mut manifest: serde_json::Value = serde_json::from_str(&plain).unwrap();
        manifest["generator"]["tasks"]["reply"]["most_doubt"] = 0.0.into();
        std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
        let error = Bundle::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("most_doubt is not above zero"), "{error}");
        let mut manifest: serde_json::Value = serde_json::from_str(&plain).unwrap();
        manifest["generator"]["tasks"]["reply"]["least_right"] = 1.5.into();
        std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
        let error = Bundle::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("least_right is not from 0 to 1"), "{error}");
        for (tokens, weights, reason) in [
            (json!([1, 2]), json!([[0, 1], [1, 0], [1]]), "one finite number for each"),
            (json!([1, 9_999_999]), json!([[0, 1], [1, 0], [1, 1]]), "tokens of its vocabulary"),
            (json!([]), json!([[], [], []]), "tokens of its vocabulary"),
        ] {
            let mut manifest: serde_json::Value = serde_json::from_str(&plain).unwrap();
            manifest["generator"]["mood"] = json!({"tokens": tokens, "weights": weights, "bias": [0, 0, 0]});
            std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
            let error = Bundle::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_missing_file_says_which() {
        let dir = tempfile::tempdir().unwrap();
        let error = Bundle::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("manifest.json") && error.contains("run `make build`"), "{error}");
        assert!(error.ends_with("for a model of your own, run `dichroic models add --replace`"), "{error}");
    }
}
