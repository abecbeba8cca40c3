//! A release: the unpacked folder of a bundle, verified file by file against its list of hashes.
//!
//! Owns the form of that list, `SHA256SUMS` as `sha256sum` writes it, and of its detached signature,
//! `SHA256SUMS.minisig` as minisign writes it today (prehashed). Refuses links, names that leave the folder, and files
//! that the list does not name. Loads nothing of what it reads. Runs on the calling thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Component, Path, PathBuf},
};

use minisign_verify::{PublicKey, Signature};

use super::{bundle::sha256, progress::Progress};

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";

/// An unpacked bundle whose list of hashes could be read. What it says is believed of no file yet.
#[derive(Debug)]
pub struct Release {
    dir: PathBuf,
    list: String,
    hashes: BTreeMap<PathBuf, String>,
}

/// Why a folder is not the bundle that was packed. Each message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// A file or a folder could not be read.
    #[error("cannot read {}: {cause}; unpack the whole bundle and name its folder", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The list has a line that is none, names a file twice, or is empty.
    #[error(
        "line {line} of {SUMS} is not a SHA-256, two spaces and a path of its own inside the bundle; use none of it"
    )]
    Malformed {
        /// Counted from one.
        line: usize,
    },
    /// A listed file is not there.
    #[error("{} is missing; unpack the bundle again", path.display())]
    Missing {
        /// Relative to the bundle.
        path: PathBuf,
    },
    /// A listed file is another one.
    #[error("{} is not the file that was packed; carry the bundle over again, and use none of it", path.display())]
    Changed {
        /// Relative to the bundle.
        path: PathBuf,
    },
    /// Something that the list does not name.
    #[error("{} does not belong to the bundle; unpack it in an empty folder", path.display())]
    Unlisted {
        /// Relative to the bundle.
        path: PathBuf,
    },
    /// Neither a file nor a folder.
    #[error("{} is a link or a device, which no bundle holds; unpack it in an empty folder", path.display())]
    NotAFile {
        /// Relative to the bundle.
        path: PathBuf,
    },
    /// There is a key, but no signature to judge by it.
    #[error("the bundle has no {SIGNATURE}; ask whoever made it for a signed one")]
    Unsigned,
    /// The key file holds none.
    #[error("{} is no minisign public key ({reason}); name the file that `minisign -G` made", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it.
        reason: minisign_verify::Error,
    },
    /// The signature is damaged, another key's, or of another list.
    #[error("{SIGNATURE} does not show that {SUMS} comes from the owner of the key ({reason}); use none of it")]
    Signature {
        /// What is wrong with it.
        reason: minisign_verify::Error,
    },
}

impl Release {
    /// Reads the list of hashes of an unpacked bundle.
    ///
    /// # Errors
    /// [`ReleaseError::Unreadable`] and [`ReleaseError::Malformed`].
    pub fn open(dir: &Path) -> Result<Self, ReleaseError> {
        let path = dir.join(SUMS);
        let list = fs::read_to_string(&path).map_err(|cause| ReleaseError::Unreadable { path, cause })?;
        Ok(Self { dir: dir.to_owned(), hashes: parse(&list)?, list })
    }

    /// How many files are listed.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Never: an empty list is malformed.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Judges the signature of the list by the minisign public key in a file; returns its trusted comment.
    ///
    /// # Errors
    /// [`ReleaseError`] for a key that is none, and for a signature that is absent, damaged or not of this key.
    pub fn verify_signature(&self, key: &Path) -> Result<String, ReleaseError> {
        let text = fs::read_to_string(key)
            .map_err(|source| ReleaseError::Key { path: key.to_owned(), reason: source.into() })?;
        let key = PublicKey::decode(&text).map_err(|reason| ReleaseError::Key { path: key.to_owned(), reason })?;
        let path = self.dir.join(SIGNATURE);
        let text = fs::read_to_string(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => ReleaseError::Unsigned,
            _ => ReleaseError::Unreadable { path, cause },
        })?;
        let signature = Signature::decode(&text).map_err(|reason| ReleaseError::Signature { reason })?;
        // The old form signs the bytes without hashing them first; nothing here ever wrote it.
        key.verify(self.list.as_bytes(), &signature, false).map_err(|reason| ReleaseError::Signature { reason })?;
        Ok(signature.trusted_comment().to_owned())
    }

    /// Compares the folder with the list: every listed file is there and has its hash, and nothing else is there.
    ///
    /// # Errors
    /// The first [`ReleaseError`].
    pub fn verify_files(&self, progress: &dyn Progress) -> Result<(), ReleaseError> {
        let found = self.files()?;
        if let Some(path) = found.iter().find(|path| !self.hashes.contains_key(*path)) {
            return Err(ReleaseError::Unlisted { path: path.clone() });
        }
        // What cannot be read is told where it is hashed.
        progress.begin(found.iter().filter_map(|path| Some(fs::metadata(self.dir.join(path)).ok()?.len())).sum());
        for (path, expected) in &self.hashes {
            if !found.contains(path) {
                return Err(ReleaseError::Missing { path: path.clone() });
            }
            let full = self.dir.join(path);
            let hash = sha256(&full, progress);
            if hash.map_err(|cause| ReleaseError::Unreadable { path: full, cause })? != *expected {
                return Err(ReleaseError::Changed { path: path.clone() });
            }
        }
        Ok(())
    }

    /// Every file in the folder but the list and its signature. No link is followed.
    fn files(&self) -> Result<BTreeSet<PathBuf>, ReleaseError> {
        let mut found = BTreeSet::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let full = self.dir.join(&folder);
            let unreadable = |cause| ReleaseError::Unreadable { path: full.clone(), cause };
            for entry in fs::read_dir(&full).map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?;
                let path = folder.join(entry.file_name());
                let kind = entry.file_type().map_err(unreadable)?;
                if kind.is_dir() {
                    folders.push(path);
                } else if !kind.is_file() {
                    return Err(ReleaseError::NotAFile { path });
                } else if path != Path::new(SUMS) && path != Path::new(SIGNATURE) {
                    found.insert(path);
                }
            }
        }
        Ok(found)
    }
}

fn parse(list: &str) -> Result<BTreeMap<PathBuf, String>, ReleaseError> {
    let mut hashes = BTreeMap::new();
    for (number, line) in list.lines().enumerate() {
        let entry = line.split_once("  ").filter(|(hash, path)| is_hash(hash) && stays_inside(path));
        let fresh = entry.and_then(|(hash, path)| hashes.insert(path.into(), hash.to_owned()).is_none().then_some(()));
        fresh.ok_or(ReleaseError::Malformed { line: number + 1 })?;
    }
    if hashes.is_empty() { Err(ReleaseError::Malformed { line: 1 }) } else { Ok(hashes) }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn stays_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::progress::{Sums, Unwatched};

    // Made with minisign 0.11 for the list below; OTHER is a second key, OLD the form without prehash.
    const LIST: &str = "b3eacd33433b31b5252351032c9b3e7a2e7aa7738d5decdf0dd6c62680853c06  bin/dichroic\n\
        9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c  models/m/model.onnx\n";
    const KEY: &str = "untrusted comment: minisign public key E2FCD4ED36743B01\n\
        RWQBO3Q27dT84j09acLn43NlWKyut7t341rrxDj0uILX9i39rR2EsRYQ\n";
    const OTHER: &str = "untrusted comment: minisign public key 853C911E6BF5C4A7\n\
        RWSnxPVrHpE8hSUJFbBwxaDRSR7JQqCVD0Eg+jsfysV0udQ1Kr3PRk0n\n";
    const SIGNED: &str = "untrusted comment: signature from minisign secret key\n\
        RUQBO3Q27dT84uyeA0JthW+R0dOeNAehQNz9uykPhV5gf4CIw8W45t1pmR8PJPVc90YEDBJBpA9FdC09uz//+nWVKe6IzDoumQo=\n\
        trusted comment: dichroic 0.1.0\n\
        9mOIk4j4MFVXm8olEP4YFwdGm3GoFqFMTIbFyroG5cRpPKP+uRM5c4hhS/y522tSf7QtMCfdPEcR4cetNcufDg==\n";
    const OLD: &str = "untrusted comment: signature from minisign secret key\n\
        RWQBO3Q27dT84nF3xc5tFpj0VW2bLG8ZeT52XOWU4pZTdw7c+WX8CJ1O8O4Xaj2rsamJ67u9KYQRFTpwlSP8JUSlsurJZORwdAc=\n\
        trusted comment: dichroic 0.1.0\n\
        Yicm49SeTzG4tqeh/GzkgiKFnLLExwY5+1qRziuMxD+eLMFSr59iGFl51IDJoU9/jv3HeFb1DpiBkk8aG0JCBA==\n";

    fn unpacked() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in
            [("bin/dichroic", "server"), ("models/m/model.onnx", "weights"), (SUMS, LIST), (SIGNATURE, SIGNED)]
        {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    fn judge(dir: &Path, key: &str) -> Result<String, ReleaseError> {
        let keys = tempfile::tempdir().unwrap();
        let path = keys.path().join("minisign.pub");
        fs::write(&path, key).unwrap();
        Release::open(dir)?.verify_signature(&path)
    }

    #[test]
    fn what_was_packed_is_verified() {
        let dir = unpacked();
        let release = Release::open(dir.path()).unwrap();
        assert_eq!(release.len(), 2);
        let sums = Sums::default();
        release.verify_files(&sums).unwrap();
        assert_eq!(sums.get(), [13, 13], "`server` and `weights`");
        assert_eq!(judge(dir.path(), KEY).unwrap(), "dichroic 0.1.0");
    }

    #[test]
    fn a_changed_a_missing_and_an_added_file_are_named() {
        let verify = |dir: &Path| Release::open(dir).unwrap().verify_files(&Unwatched).unwrap_err();
        let dir = unpacked();
        let model = dir.path().join("models/m/model.onnx");
        fs::write(&model, "Weights").unwrap();
        assert!(
            matches!(verify(dir.path()), ReleaseError::Changed { path } if path == Path::new("models/m/model.onnx"))
        );
        fs::remove_file(&model).unwrap();
        assert!(
            matches!(verify(dir.path()), ReleaseError::Missing { path } if path == Path::new("models/m/model.onnx"))
        );
        fs::write(&model, "weights").unwrap();
        fs::write(dir.path().join("models/m/extra"), "").unwrap();
        assert!(matches!(verify(dir.path()), ReleaseError::Unlisted { path } if path == Path::new("models/m/extra")));
        // Only the two of the top may go unlisted.
        fs::rename(dir.path().join("models/m/extra"), dir.path().join("models/SHA256SUMS")).unwrap();
        assert!(matches!(verify(dir.path()), ReleaseError::Unlisted { .. }));
    }

    #[test]
    fn a_link_is_refused_wherever_it_leads() {
        let dir = unpacked();
        let model = dir.path().join("models/m/model.onnx");
        fs::rename(&model, dir.path().join("bin/model")).unwrap();
        std::os::unix::fs::symlink("../../bin/model", &model).unwrap();
        let error = Release::open(dir.path()).unwrap().verify_files(&Unwatched).unwrap_err();
        assert!(matches!(error, ReleaseError::NotAFile { path } if path == Path::new("models/m/model.onnx")));
    }

    #[test]
    fn a_signature_counts_only_whole_of_this_key_and_of_this_list() {
        let dir = unpacked();
        let bad = |key| matches!(judge(dir.path(), key), Err(ReleaseError::Signature { .. }));
        assert!(bad(OTHER), "another key's");
        let mixed =
            format!("{}\n{}", KEY.lines().next().unwrap(), "RWQBO3Q27dT84iUJFbBwxaDRSR7JQqCVD0Eg+jsfysV0udQ1Kr3PRk0n");
        assert!(bad(&mixed), "another key under this one's number");
        for text in [&SIGNED.replace("0.1.0", "9.9.9"), &SIGNED.replace("uyeA0J", "uyeA0K"), OLD, "", "signed\n"] {
            fs::write(dir.path().join(SIGNATURE), text).unwrap();
            assert!(bad(KEY), "{text}");
        }
        fs::write(dir.path().join(SIGNATURE), SIGNED).unwrap();
        fs::write(dir.path().join(SUMS), LIST.replace("b3ea", "b3eb")).unwrap();
        assert!(bad(KEY), "of another list");
        fs::remove_file(dir.path().join(SIGNATURE)).unwrap();
        assert!(matches!(judge(dir.path(), KEY), Err(ReleaseError::Unsigned)));
        assert!(matches!(judge(dir.path(), "no key"), Err(ReleaseError::Key { .. })));
    }

    #[test]
    fn a_list_that_leaves_the_folder_or_is_none_is_refused() {
        let hash = LIST.get(..64).unwrap();
        for list in [
            String::new(),
            format!("{hash}  ../x\n"),
            format!("{hash}  /etc/hostname\n"),
            format!("{hash}  \n"),
            format!("{hash} x\n"),
            format!("{}  x\n", hash.to_uppercase()),
            format!("{}  x\n", hash.get(1..).unwrap()),
            format!("{hash}  a/x\n{hash}  a//x\n"),
        ] {
            assert!(parse(&list).is_err(), "{list:?}");
        }
    }
}
