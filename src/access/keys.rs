//! Bearer keys: who holds a valid one, and what it allows.
//!
//! Owns the table of keys in force, read from the key file (`file`) and from the bootstrap key. Only hashes are
//! held. Refuses to answer differently, in words or in work, for an unknown identifier and for a wrong secret.
//! [`KeyStore::authenticate`] runs on the request's tokio thread (two short hashes, no I/O);
//! [`KeyStore::reload_if_changed`] reads a file and belongs on a blocking thread.

pub mod file;
mod secret;

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

pub use file::{IssuedKey, KeyFileError, KeyRecord, NewKey, Revocation};

use crate::domain::{Operation, UsageLimit};
use file::KeyFile;
use secret::SaltedHash;

/// Fewest characters of a bootstrap key: shorter ones can be guessed.
pub const MIN_BOOTSTRAP_CHARACTERS: usize = 16;

/// `key_id` of the holder of the bootstrap key. It cannot collide: issued identifiers have eight characters.
pub const BOOTSTRAP_ID: &str = "bootstrap";

/// An authenticated caller. Holding one is the proof; only a [`KeyStore`] makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    key_id: Arc<str>,
    /// `None` allows every operation, later ones included.
    scopes: Option<Arc<[Operation]>>,
    limit: UsageLimit,
}

impl Caller {
    /// The public part of the key; fit for logs.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Whether the key's scopes include the operation.
    pub fn may(&self, operation: Operation) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(&operation))
    }

    /// The limit in force for this key: its own, or the server's default.
    pub fn limit(&self) -> UsageLimit {
        self.limit
    }

    #[cfg(test)]
    pub(crate) fn for_test(key_id: &str, limit: UsageLimit) -> Self {
        Self { key_id: key_id.into(), scopes: None, limit }
    }
}

/// Why a credential was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No key in force matches: malformed, never issued, revoked, or a wrong secret.
    #[error("the API key is not known")]
    Unknown,
    /// The secret is right, the key's time is over. Only its holder can learn this.
    #[error("the API key has expired")]
    Expired,
}

/// What [`KeyStore::reload_if_changed`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The file is as it was last seen.
    Unchanged,
    /// New keys are in force.
    Loaded {
        /// How many of them are neither revoked nor expired.
        keys: usize,
    },
    /// The file changed but cannot be used: the previous keys stay in force.
    Kept,
}

/// A key in force, as the table holds it.
struct Entry {
    hash: SaltedHash,
    expires: Option<OffsetDateTime>,
    caller: Caller,
}

type Table = HashMap<Arc<str>, Entry>;

/// What the key file looked like when it was last read. Contents are compared, not times or sizes: the file is
/// small, and a time stamp may miss two writes in one tick or lie on network and overlay file systems.
#[derive(PartialEq, Eq)]
enum Seen {
    Absent,
    Content([u8; 32]),
    Unreadable(std::io::ErrorKind),
}

/// All keys in force.
pub struct KeyStore {
    path: Option<PathBuf>,
    default_limit: UsageLimit,
    bootstrap: Option<Entry>,
    /// Compared against when no such identifier exists, so that an unknown one costs the same hash.
    decoy: SaltedHash,
    table: RwLock<Table>,
    seen: Mutex<Seen>,
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl KeyStore {
    /// Reads the key file, if a path is given. A file that does not exist yet holds no keys and is noticed when it
    /// appears. `default_limit` applies to every key that names no limit of its own.
    ///
    /// # Errors
    /// A file that cannot be read or is malformed, a bootstrap key that is too short, or no randomness.
    pub fn open(
        path: Option<&Path>,
        bootstrap: Option<SecretString>,
        default_limit: UsageLimit,
    ) -> Result<Self, KeyFileError> {
        let bootstrap = match bootstrap {
            None => None,
            Some(key) if key.expose_secret().chars().count() < MIN_BOOTSTRAP_CHARACTERS => {
                return Err(KeyFileError::BootstrapTooShort);
            }
            Some(key) => Some(Entry {
                hash: SaltedHash::new(key.expose_secret())?,
                expires: None,
                caller: Caller { key_id: BOOTSTRAP_ID.into(), scopes: None, limit: default_limit },
            }),
        };
        let store = Self {
            path: path.map(Path::to_owned),
            default_limit,
            bootstrap,
            decoy: SaltedHash::new("")?,
            table: RwLock::default(),
            seen: Mutex::new(Seen::Absent),
        };
        if let Some(path) = path
            && let Some(bytes) = file::read(path)?
        {
            store.install(path, &bytes)?;
            *store.seen.lock().unwrap_or_else(PoisonError::into_inner) = Seen::Content(Sha256::digest(&bytes).into());
        }
        Ok(store)
    }

    /// Whether nobody can authenticate: no bootstrap key, and no issued key that is neither revoked nor expired.
    pub fn is_empty(&self) -> bool {
        self.bootstrap.is_none() && self.usable_keys(OffsetDateTime::now_utc()) == 0
    }

    /// Judges the credential of an `Authorization: Bearer` header.
    ///
    /// # Errors
    /// [`Denied`], which says no more than the holder of the secret may know.
    pub fn authenticate(&self, presented: &str) -> Result<Caller, Denied> {
        self.authenticate_at(presented, OffsetDateTime::now_utc())
    }

    fn authenticate_at(&self, presented: &str, now: OffsetDateTime) -> Result<Caller, Denied> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        // Identifiers are not secret, so an ordinary map may find them; what follows is the same work either way.
        let entry = secret::id_of(presented).and_then(|id| table.get(id));
        let issued = entry.map_or(&self.decoy, |entry| &entry.hash).matches(presented);
        let bootstrap = self.bootstrap.as_ref().filter(|bootstrap| bootstrap.hash.matches(presented));
        if let Some(bootstrap) = bootstrap {
            return Ok(bootstrap.caller.clone());
        }
        match entry {
            Some(entry) if issued => match entry.expires {
                Some(expires) if expires <= now => Err(Denied::Expired),
                _ => Ok(entry.caller.clone()),
            },
            _ => Err(Denied::Unknown),
        }
    }

    /// Reads the key file again and puts its keys in force if it changed. The server's start calls this from a
    /// background task every few seconds, through `spawn_blocking`.
    ///
    /// A file that cannot be read, is malformed or has gone leaves the previous keys in force and is logged once,
    /// not once a round: half an edit must not lock every caller out. To withdraw a key, revoke it.
    pub fn reload_if_changed(&self) -> Reload {
        let Some(path) = &self.path else { return Reload::Unchanged };
        // Held throughout, so that two rounds never install their tables in the wrong order.
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file::read(path);
        let now = match &read {
            Ok(Some(bytes)) => Seen::Content(Sha256::digest(bytes).into()),
            Ok(None) => Seen::Absent,
            Err(error) => Seen::Unreadable(error.io_kind()),
        };
        if *last == now {
            return Reload::Unchanged;
        }
        *last = now;
        let outcome = match read {
            Ok(Some(bytes)) => self.install(path, &bytes),
            Ok(None) => Err(KeyFileError::Gone { path: path.clone() }),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {
                let keys = self.usable_keys(OffsetDateTime::now_utc());
                tracing::info!(keys, "key file reloaded");
                Reload::Loaded { keys }
            }
            Err(error) => {
                tracing::error!(%error, "key file not reloaded, the previous keys stay in force");
                Reload::Kept
            }
        }
    }

    fn install(&self, path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
        let table = KeyFile::parse(path, bytes)?
            .keys
            .into_iter()
            .filter(|record| record.revoked.is_none())
            .map(|record| {
                let key_id: Arc<str> = record.id.into();
                let caller = Caller {
                    key_id: Arc::clone(&key_id),
                    scopes: record.scopes.map(Arc::from),
                    limit: record.limit.map_or(self.default_limit, UsageLimit::from),
                };
                (key_id, Entry { hash: record.secret, expires: record.expires.map(|at| at.0), caller })
            })
            .collect();
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        Ok(())
    }

    fn usable_keys(&self, now: OffsetDateTime) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.values().filter(|entry| entry.expires.is_none_or(|expires| expires > now)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use time::Duration;

    use super::*;

    const BOOTSTRAP: &str = "a-bootstrap-key-of-some-length";

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        (folder, path)
    }

    fn issue(path: &Path, new: NewKey) -> IssuedKey {
        file::create(path, new, OffsetDateTime::now_utc()).unwrap()
    }

    fn open(path: &Path) -> KeyStore {
        KeyStore::open(Some(path), None, UsageLimit::DEFAULT).unwrap()
    }

    #[test]
    fn an_issued_key_opens_every_operation_at_the_default_limit() {
        let (_folder, path) = folder();
        let key = issue(&path, NewKey::default());
        let caller = open(&path).authenticate(key.key.expose_secret()).unwrap();
        assert_eq!(caller.key_id(), key.id);
        assert!(Operation::ALL.into_iter().all(|operation| caller.may(operation)));
        assert_eq!(caller.limit(), UsageLimit::DEFAULT);
    }

    #[test]
    fn scopes_and_own_limit_are_carried_by_the_caller() {
        let (_folder, path) = folder();
        let limit = UsageLimit { per_minute: 7, burst: 3 };
        let key = issue(
            &path,
            NewKey { scopes: Some(vec![Operation::GuardianText]), limit: Some(limit), ..NewKey::default() },
        );
        let caller = open(&path).authenticate(key.key.expose_secret()).unwrap();
        let allowed: Vec<_> = Operation::ALL.into_iter().filter(|operation| caller.may(*operation)).collect();
        assert_eq!(allowed, [Operation::GuardianText]);
        assert_eq!(caller.limit(), limit);
    }

    #[test]
    fn every_wrong_credential_gets_the_same_answer() {
        let (_folder, path) = folder();
        let key = issue(&path, NewKey::default());
        let other = issue(&path, NewKey::default());
        let store = KeyStore::open(Some(&path), Some(BOOTSTRAP.into()), UsageLimit::DEFAULT).unwrap();
        let right = key.key.expose_secret().to_owned();
        let mut tampered = right.clone();
        let last = if tampered.pop() == Some('0') { '1' } else { '0' };
        tampered.push(last);
        let swapped = right.replace(&key.id, &other.id);
        let wrong = [
            String::new(),
            "dk_".into(),
            "dk__".into(),
            format!("dk_{}_", key.id),
            format!("dk_{}", key.id),
            "dk_00000000_0000000000000000000000000000000000000000".into(),
            right.to_uppercase(),
            format!("{right} "),
            right[..right.len() - 1].to_owned(),
            tampered,
            swapped,
            BOOTSTRAP[1..].to_owned(),
            BOOTSTRAP_ID.into(),
            "\u{1f600}".repeat(1000),
        ];
        for presented in wrong {
            assert_eq!(store.authenticate(&presented), Err(Denied::Unknown), "{presented:?}");
        }
        assert!(store.authenticate(&right).is_ok());
    }

    #[test]
    fn the_messages_name_no_key() {
        assert_eq!(Denied::Unknown.to_string(), "the API key is not known");
        assert_eq!(Denied::Expired.to_string(), "the API key has expired");
    }

    #[test]
    fn an_expired_key_is_told_so_only_with_its_secret() {
        let (_folder, path) = folder();
        let now = OffsetDateTime::now_utc();
        let key = issue(&path, NewKey { expires: Some(now + Duration::HOUR), ..NewKey::default() });
        let store = open(&path);
        let right = key.key.expose_secret();
        let end = store.authenticate_at(right, now + Duration::HOUR);
        assert!(store.authenticate_at(right, now + Duration::minutes(59)).is_ok());
        assert_eq!(end, Err(Denied::Expired), "the key ends at the very second");
        let guess = format!("dk_{}_{}", key.id, "0".repeat(40));
        assert_eq!(store.authenticate_at(&guess, now + Duration::DAY), Err(Denied::Unknown));
    }

    #[test]
    fn the_bootstrap_key_works_beside_the_file_and_must_be_long_enough() {
        let (_folder, path) = folder();
        let store = KeyStore::open(Some(&path), Some(BOOTSTRAP.into()), UsageLimit::DEFAULT).unwrap();
        assert_eq!(store.authenticate(BOOTSTRAP).unwrap().key_id(), "bootstrap");
        assert!(!store.is_empty());
        let short = KeyStore::open(None, Some("fifteen-letters".into()), UsageLimit::DEFAULT).unwrap_err();
        assert_eq!(short.to_string(), "DICHROIC_API_KEY is shorter than 16 characters; set a longer one");
    }

    #[test]
    fn a_store_is_empty_until_some_key_is_in_force() {
        let (_folder, path) = folder();
        let store = open(&path);
        assert!(store.is_empty());
        let key = issue(&path, NewKey::default());
        assert_eq!(store.reload_if_changed(), Reload::Loaded { keys: 1 });
        assert!(!store.is_empty());
        file::revoke(&path, &key.id, OffsetDateTime::now_utc()).unwrap();
        assert_eq!(store.reload_if_changed(), Reload::Loaded { keys: 0 });
        assert!(store.is_empty());
        let past = OffsetDateTime::now_utc() - Duration::HOUR;
        issue(&path, NewKey { expires: Some(past), ..NewKey::default() });
        assert!(open(&path).is_empty(), "an expired key opens nothing");
    }

    #[test]
    fn creating_and_revoking_take_effect_without_a_restart() {
        let (_folder, path) = folder();
        let first = issue(&path, NewKey::default());
        let store = open(&path);
        assert_eq!(store.reload_if_changed(), Reload::Unchanged);
        let second = issue(&path, NewKey::default());
        assert_eq!(store.authenticate(second.key.expose_secret()), Err(Denied::Unknown));
        assert_eq!(store.reload_if_changed(), Reload::Loaded { keys: 2 });
        assert!(store.authenticate(second.key.expose_secret()).is_ok());
        file::revoke(&path, &first.id, OffsetDateTime::now_utc()).unwrap();
        assert_eq!(store.reload_if_changed(), Reload::Loaded { keys: 1 });
        assert_eq!(store.authenticate(first.key.expose_secret()), Err(Denied::Unknown));
        assert!(store.authenticate(second.key.expose_secret()).is_ok());
    }

    #[test]
    fn a_bad_file_keeps_the_old_keys_and_complains_once() {
        let (_folder, path) = folder();
        let key = issue(&path, NewKey::default());
        let store = open(&path);
        let good = fs::read(&path).unwrap();
        for bad in [&good[..good.len() / 2], b"", b"{\"format\":1}"] {
            fs::write(&path, bad).unwrap();
            assert_eq!(store.reload_if_changed(), Reload::Kept);
            assert_eq!(store.reload_if_changed(), Reload::Unchanged, "said once, not every round");
            assert!(store.authenticate(key.key.expose_secret()).is_ok());
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(store.reload_if_changed(), Reload::Kept);
        assert_eq!(store.reload_if_changed(), Reload::Unchanged);
        assert!(store.authenticate(key.key.expose_secret()).is_ok());
        fs::write(&path, good).unwrap();
        assert_eq!(store.reload_if_changed(), Reload::Loaded { keys: 1 });
    }

    #[test]
    fn debug_output_holds_no_hash() {
        let store = KeyStore::open(None, Some(BOOTSTRAP.into()), UsageLimit::DEFAULT).unwrap();
        assert_eq!(format!("{store:?}"), "KeyStore { path: None, .. }");
    }
}
