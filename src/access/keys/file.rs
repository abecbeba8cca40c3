//! The key file: its format, and the only code that writes it.
//!
//! Owns reading, creating and revoking. Writers hold a lock beside the file, write a temporary name and rename it,
//! so that a reader sees the old file or the new one and two writers lose nothing. Refuses unknown fields and
//! formats: a mistyped `expires` must not make a key eternal. Blocking I/O; runs on the command line's thread or a
//! blocking one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::error::Category;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::secret::{self, SaltedHash};
use crate::domain::{Operation, UsageLimit};

/// The only format so far.
const FORMAT: u32 = 1;

/// Most requests of a limit, a minute and at once, as `dichroic keys create` has it. The arithmetic of a bucket would
/// overflow with some hundred times as many.
pub(in crate::access) const MOST_REQUESTS: u32 = 1_000_000;

/// Why the key file or a key could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Reading failed.
    #[error("the key file {path} cannot be read ({cause}); check its owner and mode", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Locking, writing or renaming failed; the old file is as it was.
    #[error("the key file {path} cannot be written ({cause}); check that its folder exists and is yours", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The content is no key file.
    #[error("the key file {path} is damaged ({reason}); restore it or move it away", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file was there and is there no longer.
    #[error("the key file {path} has gone; restore it, or revoke keys with `dichroic keys revoke`", path = path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// No key has the identifier.
    #[error("no key has the identifier {id} in {path}; `dichroic keys list` shows them", path = path.display())]
    UnknownKey {
        /// The identifier asked for.
        id: String,
        /// The file.
        path: PathBuf,
    },
    /// The bootstrap key can be guessed.
    #[error("DICHROIC_API_KEY is shorter than 16 characters; set a longer one")]
    BootstrapTooShort,
    /// The system gave no random bytes.
    #[error("the system gave no random bytes ({0}); a key cannot be made without them")]
    NoRandomness(#[from] getrandom::Error),
}

impl KeyFileError {
    /// The kind of the underlying I/O error, so that a repeated failure is recognised.
    pub(super) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Unreadable { cause, .. } | Self::Unwritable { cause, .. } => cause.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}

/// A moment, written as RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub OffsetDateTime);

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.format(&Rfc3339).map_err(|_| std::fmt::Error)?)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        OffsetDateTime::parse(&text, &Rfc3339)
            .map(Self)
            .map_err(|_| serde::de::Error::custom("expected a time as RFC 3339, such as 2030-01-31T12:00:00Z"))
    }
}

/// A limit of a key's own, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRecord {
    /// Requests a minute, 0 for no limit.
    pub per_minute: u32,
    /// Requests at once.
    pub burst: u32,
}

impl LimitRecord {
    fn is_sound(self) -> bool {
        // A burst that nothing is counted against does not matter.
        self.per_minute == 0 || (self.per_minute <= MOST_REQUESTS && (1..=MOST_REQUESTS).contains(&self.burst))
    }
}

impl From<LimitRecord> for UsageLimit {
    fn from(LimitRecord { per_minute, burst }: LimitRecord) -> Self {
        Self { per_minute, burst }
    }
}

impl From<UsageLimit> for LimitRecord {
    fn from(UsageLimit { per_minute, burst }: UsageLimit) -> Self {
        Self { per_minute, burst }
    }
}

/// One key, as written. The key itself is not in it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// The public part.
    pub id: String,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub(super) secret: SaltedHash,
    /// Allowed operations; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Operation>>,
    /// Its own limit; the server's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitRecord>,
    /// When it was made.
    pub created: Timestamp,
    /// From when on it is refused; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When it was revoked. The record stays, so that its identifier in old logs still means something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

/// The whole file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFile {
    format: u32,
    pub(super) keys: Vec<KeyRecord>,
}

impl KeyFile {
    /// Parses and checks the content of the file at `path` (named in errors only).
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, KeyFileError> {
        /// The format is read first, so that a newer file is called newer and not damaged.
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let malformed = |reason: String| KeyFileError::Malformed { path: path.to_owned(), reason };
        let json = |error: serde_json::Error| malformed(fault(&error));
        let Header { format } = serde_json::from_slice(bytes).map_err(json)?;
        if format != FORMAT {
            return Err(malformed(format!("its format is {format}, this program reads {FORMAT}")));
        }
        let file: Self = serde_json::from_slice(bytes).map_err(json)?;
        let mut ids = std::collections::HashSet::new();
        for (number, KeyRecord { id, limit, .. }) in (1..).zip(&file.keys) {
            if !secret::is_id(id) {
                // Not quoted: it may be a whole key.
                return Err(malformed(format!("key number {number} has no valid identifier")));
            }
            if !ids.insert(id) {
                return Err(malformed(format!("the identifier {id} stands in it twice")));
            }
            if limit.is_some_and(|limit| !limit.is_sound()) {
                return Err(malformed(format!(
                    "the limit of {id} is out of bounds: per_minute is 0 to {MOST_REQUESTS}, burst 1 to {MOST_REQUESTS}"
                )));
            }
        }
        Ok(file)
    }
}

/// What is wrong with a file and where. The words of `serde_json` quote what stands there, and that may be a key which
/// somebody put in the wrong place.
fn fault(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Eof => "it ends too early",
        Category::Data => "a field is unknown, missing or wrong",
        Category::Syntax | Category::Io => "it is no JSON",
    };
    format!("{what}, near line {} column {}", error.line(), error.column())
}

/// What a new key shall be.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// What its owner calls it.
    pub label: Option<String>,
    /// Allowed operations; `None` allows all.
    pub scopes: Option<Vec<Operation>>,
    /// From when on it is refused.
    pub expires: Option<OffsetDateTime>,
    /// Its own limit.
    pub limit: Option<UsageLimit>,
}

/// A key just made: the only moment at which its text exists.
#[derive(Debug)]
pub struct IssuedKey {
    /// The public part.
    pub id: String,
    /// The whole key, `dk_<id>_<secret>`.
    pub key: SecretString,
}

/// What revoking did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The key was in force and is no longer.
    Done,
    /// It had been revoked before; the first time stands.
    Already(OffsetDateTime),
}

/// Makes a key and adds it to the file, which is created if need be.
///
/// # Errors
/// The file cannot be read, locked or written, is damaged, or there is no randomness.
pub fn create(path: &Path, new: NewKey, now: OffsetDateTime) -> Result<IssuedKey, KeyFileError> {
    edit(path, |file| {
        let id = loop {
            let id = secret::draw_id()?;
            if file.keys.iter().all(|record| record.id != id) {
                break id;
            }
        };
        let key = secret::draw_key(&id)?;
        file.keys.push(KeyRecord {
            id: id.clone(),
            label: new.label,
            secret: SaltedHash::new(key.expose_secret())?,
            scopes: new.scopes,
            limit: new.limit.map(LimitRecord::from),
            created: Timestamp(whole_seconds(now)),
            expires: new.expires.map(|at| Timestamp(whole_seconds(at))),
            revoked: None,
        });
        Ok(IssuedKey { id, key })
    })
}

/// Marks a key as revoked.
///
/// # Errors
/// No such key, or the file cannot be read, locked or written, or is damaged.
pub fn revoke(path: &Path, id: &str, now: OffsetDateTime) -> Result<Revocation, KeyFileError> {
    let unknown = || KeyFileError::UnknownKey { id: id.to_owned(), path: path.to_owned() };
    // Nothing is created, not even a lock, to say that a key is unknown.
    if list(path)?.iter().all(|record| record.id != id) {
        return Err(unknown());
    }
    edit(path, |file| {
        let record = file.keys.iter_mut().find(|record| record.id == id).ok_or_else(unknown)?;
        if let Some(Timestamp(since)) = record.revoked {
            return Ok(Revocation::Already(since));
        }
        record.revoked = Some(Timestamp(whole_seconds(now)));
        Ok(Revocation::Done)
    })
}

/// Every key ever made, the oldest first. A file that does not exist holds none.
///
/// # Errors
/// The file cannot be read or is damaged.
pub fn list(path: &Path) -> Result<Vec<KeyRecord>, KeyFileError> {
    Ok(load(path)?.keys)
}

/// The file's bytes; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, KeyFileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(KeyFileError::Unreadable { path: path.to_owned(), cause }),
    }
}

fn load(path: &Path) -> Result<KeyFile, KeyFileError> {
    match read(path)? {
        Some(bytes) => KeyFile::parse(path, &bytes),
        None => Ok(KeyFile { format: FORMAT, keys: Vec::new() }),
    }
}

fn edit<T>(path: &Path, change: impl FnOnce(&mut KeyFile) -> Result<T, KeyFileError>) -> Result<T, KeyFileError> {
    let unwritable = |cause| KeyFileError::Unwritable { path: path.to_owned(), cause };
    // A link is followed, or the rename would put a file in its place.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // The lock has a file of its own: the key file is replaced by every write. It is freed when dropped.
    let lock = open_private(&beside(&target, ".lock"), OpenOptions::new().create(true)).map_err(unwritable)?;
    lock.lock().map_err(unwritable)?;
    let mut file = load(path)?;
    let result = change(&mut file)?;
    let mut bytes = serde_json::to_vec_pretty(&file)
        .map_err(|error| KeyFileError::Malformed { path: path.to_owned(), reason: error.to_string() })?;
    bytes.push(b'\n');
    replace(&target, &bytes).map_err(unwritable)?;
    Ok(result)
}

/// Writes a file of mode 0600 under a temporary name and renames it. Only the holder of the lock may call this.
fn replace(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(target, ".new");
    // What a killed writer left; nobody else is writing, the lock is ours.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&temporary, target, bytes).and_then(|()| fs::rename(&temporary, target));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    // The rename is on disk only once its folder is.
    File::open(folder_of(target))?.sync_all()
}

fn write_new(temporary: &Path, target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = open_private(temporary, OpenOptions::new().create_new(true))?;
    if let Ok(old) = fs::metadata(target) {
        let new = file.metadata()?;
        // When root edits the file of a service account, that account must still be able to read it.
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
    }
    file.write_all(bytes)?;
    file.sync_all()
}

fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.write(true).mode(0o600).open(path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fractions of a second would only make the file harder to read.
fn whole_seconds(at: OffsetDateTime) -> OffsetDateTime {
    at.replace_nanosecond(0).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        (folder, path)
    }

    #[test]
    fn the_file_is_private_and_holds_no_key() {
        let (_folder, path) = folder();
        let issued = create(&path, NewKey { label: Some("bot".into()), ..NewKey::default() }, NOW).unwrap();
        let content = fs::read_to_string(&path).unwrap();
        let secret = issued.key.expose_secret().rsplit('_').next().unwrap();
        assert!(!content.contains(secret));
        assert!(content.contains(&issued.id) && content.contains("1970-01-01T00:00:00Z"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!beside(&path, ".new").exists());
    }

    #[test]
    fn a_file_with_a_wider_mode_is_narrowed_by_the_next_write() {
        let (_folder, path) = folder();
        create(&path, NewKey::default(), NOW).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        create(&path, NewKey::default(), NOW).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn revoking_keeps_the_record_and_its_first_time() {
        let (_folder, path) = folder();
        let id = create(&path, NewKey::default(), NOW).unwrap().id;
        assert_eq!(revoke(&path, &id, NOW).unwrap(), Revocation::Done);
        assert_eq!(revoke(&path, &id, NOW + time::Duration::DAY).unwrap(), Revocation::Already(NOW));
        assert_eq!(list(&path).unwrap()[0].revoked, Some(Timestamp(NOW)));
    }

    #[test]
    fn revoking_an_unknown_key_says_so_and_leaves_nothing_behind() {
        let (folder, path) = folder();
        let error = revoke(&path, "00000000", NOW).unwrap_err();
        assert!(error.to_string().starts_with("no key has the identifier 00000000 in "), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn parallel_writers_lose_nothing() {
        let (_folder, path) = folder();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        create(&path, NewKey::default(), NOW).unwrap();
                    }
                });
            }
        });
        assert_eq!(list(&path).unwrap().len(), 20);
    }

    #[test]
    fn what_a_killed_writer_left_is_no_obstacle() {
        let (_folder, path) = folder();
        fs::write(beside(&path, ".new"), "half").unwrap();
        fs::write(beside(&path, ".lock"), "").unwrap();
        create(&path, NewKey::default(), NOW).unwrap();
        assert_eq!(list(&path).unwrap().len(), 1);
    }

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let (folder, path) = folder();
        create(&path, NewKey::default(), NOW).unwrap();
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        create(&link, NewKey::default(), NOW).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(list(&path).unwrap().len(), 2);
    }

    #[test]
    fn a_tampered_file_is_refused_and_not_overwritten() {
        let (_folder, path) = folder();
        let id = create(&path, NewKey { expires: Some(NOW), ..NewKey::default() }, NOW).unwrap().id;
        let good = fs::read_to_string(&path).unwrap();
        let twice = {
            let mut value: serde_json::Value = serde_json::from_str(&good).unwrap();
            let record = value["keys"][0].clone();
            value["keys"].as_array_mut().unwrap().push(record);
            value.to_string()
        };
        let limited = |per_minute: u32, burst: u32| {
            let limit = format!("\"limit\":{{\"per_minute\":{per_minute},\"burst\":{burst}}},\"created\"");
            good.replace("\"created\"", &limit)
        };
        let cases = [
            (good.replace("\"format\": 1", "\"format\": 2"), "its format is 2, this program reads 1"),
            (good.replace("\"expires\"", "\"expire\""), "a field is unknown, missing or wrong, near line 11 column "),
            (good.replace(&id, "../../up"), "key number 1 has no valid identifier"),
            (good.replace("1970-01-01T00:00:00Z", "tomorrow"), "unknown, missing or wrong, near line 10 column "),
            (good.replace("\"salt\": \"", "\"salt\": \"0"), "unknown, missing or wrong, near line 7 column "),
            (limited(5, 0), "is out of bounds: per_minute is 0 to 1000000, burst 1 to 1000000"),
            (limited(5, 1_000_001), "is out of bounds"),
            (limited(5, u32::MAX), "is out of bounds"),
            (limited(1_000_001, 5), "is out of bounds"),
            (
                good.replace("\"created\"", "\"scopes\":[\"everything\"],\"created\""),
                "unknown, missing or wrong, near line 10 ",
            ),
            (twice, "stands in it twice"),
            (good.replace(':', "="), "it is no JSON, near line 2 column "),
            (good[..good.len() / 2].to_owned(), "it ends too early, near line "),
            (String::new(), "it ends too early, near line "),
        ];
        for (bad, expected) in cases {
            fs::write(&path, &bad).unwrap();
            let error = create(&path, NewKey::default(), NOW).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
        }
    }

    #[test]
    fn a_key_in_the_wrong_place_is_not_shown() {
        let (_folder, path) = folder();
        let issued = create(&path, NewKey { label: Some("bot".into()), ..NewKey::default() }, NOW).unwrap();
        let key = issued.key.expose_secret();
        let good = fs::read_to_string(&path).unwrap();
        for (right, wrong) in [
            ("\"format\": 1", format!("\"format\": \"{key}\"")),
            ("\"keys\": [", format!("\"keys\": [\"{key}\", ")),
            (issued.id.as_str(), key.to_owned()),
            ("\"label\"", format!("\"{key}\"")),
            ("\"label\": \"bot\"", format!("\"scopes\": [\"{key}\"]")),
            ("\"label\": \"bot\"", format!("\"limit\": \"{key}\"")),
            ("\"salt\": \"", format!("\"salt\": \"{key}")),
            ("\"sha256\"", format!("\"{key}\"")),
            ("1970-01-01T00:00:00Z", key.to_owned()),
            ("{", key.to_owned()),
        ] {
            let bad = good.replace(right, &wrong);
            assert!(bad.contains(key), "{right} is not in the file");
            fs::write(&path, bad).unwrap();
            let error = create(&path, NewKey::default(), NOW).unwrap_err();
            assert!(matches!(error, KeyFileError::Malformed { .. }), "{right}");
            assert!(!format!("{error} {error:?}").contains(key), "{right}: {error}");
        }
    }

    #[test]
    fn every_limit_that_the_command_line_takes_is_read_back() {
        let (_folder, path) = folder();
        for (per_minute, burst) in [(0, 1), (1, 1), (1, MOST_REQUESTS), (MOST_REQUESTS, MOST_REQUESTS)] {
            let limit = UsageLimit { per_minute, burst };
            create(&path, NewKey { limit: Some(limit), ..NewKey::default() }, NOW).unwrap();
            assert_eq!(list(&path).unwrap().pop().unwrap().limit, Some(LimitRecord::from(limit)));
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = create(Path::new("/nonexistent/keys.json"), NewKey::default(), NOW).unwrap_err().to_string();
        assert!(error.starts_with("the key file /nonexistent/keys.json cannot be written ("), "{error}");
    }
}
