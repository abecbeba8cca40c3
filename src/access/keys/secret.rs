//! The text of a key and its stored form.
//!
//! Owns the shape `dk_<id>_<secret>`, the drawing of random characters, salted hashing and comparison in constant
//! time. Refuses to keep a secret: it hands it over once.

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Crockford's base 32 in lower case: no letter that reads as a digit, no `_`, nothing to escape in a URL.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Characters of an identifier (40 bits).
pub(super) const ID_CHARACTERS: usize = 8;

/// Characters of a secret (200 bits).
const SECRET_CHARACTERS: usize = 40;

/// SHA-256 over a salt of the key's own and the whole key. A slow password hash would add nothing: the secret is
/// 200 random bits, out of reach of any search, and every request pays for the comparison.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SaltedHash {
    #[serde(with = "hex")]
    salt: [u8; 16],
    #[serde(with = "hex")]
    sha256: [u8; 32],
}

impl SaltedHash {
    /// Hashes a key with a fresh salt.
    pub(super) fn new(key: &str) -> Result<Self, getrandom::Error> {
        let mut salt = [0; 16];
        getrandom::fill(&mut salt)?;
        Ok(Self { salt, sha256: Self::digest(&salt, key) })
    }

    /// Whether this is the hash of `presented`, in a time that does not depend on where they differ.
    pub(super) fn matches(&self, presented: &str) -> bool {
        Self::digest(&self.salt, presented).ct_eq(&self.sha256).into()
    }

    fn digest(salt: &[u8], key: &str) -> [u8; 32] {
        Sha256::new().chain_update(salt).chain_update(key).finalize().into()
    }
}

/// A fresh identifier.
pub(super) fn draw_id() -> Result<String, getrandom::Error> {
    draw::<ID_CHARACTERS>()
}

/// A fresh key with the given identifier.
pub(super) fn draw_key(id: &str) -> Result<SecretString, getrandom::Error> {
    Ok(format!("dk_{id}_{}", draw::<SECRET_CHARACTERS>()?).into())
}

fn draw<const N: usize>() -> Result<String, getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    // 32 divides 256, so the low five bits of a random byte are uniform.
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect())
}

/// The identifier within a presented credential, if it has the shape of an issued key.
pub(super) fn id_of(presented: &str) -> Option<&str> {
    let (id, _) = presented.strip_prefix("dk_")?.split_once('_')?;
    is_id(id).then_some(id)
}

/// Whether a text could be the identifier of an issued key.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == ID_CHARACTERS && id.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// Bytes as lower-case hexadecimal text.
mod hex {
    use std::fmt::Write as _;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<const N: usize, S: Serializer>(bytes: &[u8; N], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * N);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, const N: usize, D: Deserializer<'de>>(from: D) -> Result<[u8; N], D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom(format_args!("expected {} hexadecimal digits", 2 * N));
        if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; N];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_key_has_the_documented_shape_and_is_never_the_same() {
        let id = draw_id().unwrap();
        let [one, two] = [draw_key(&id).unwrap(), draw_key(&id).unwrap()];
        let text = one.expose_secret();
        assert_eq!(id_of(text), Some(id.as_str()));
        assert_eq!(text.split('_').map(str::len).collect::<Vec<_>>(), [2, 8, 40]);
        assert_ne!(text, two.expose_secret());
    }

    #[test]
    fn equal_keys_have_different_salts_and_still_match() {
        let [one, two] = [SaltedHash::new("key").unwrap(), SaltedHash::new("key").unwrap()];
        assert_ne!(one.salt, two.salt);
        assert_ne!(one.sha256, two.sha256);
        assert!(one.matches("key") && two.matches("key") && !one.matches("kez"));
    }

    #[test]
    fn the_hash_is_sha_256_over_salt_and_key() {
        // printf '0000000000000000key' | sha256sum, so that another program can make or check a key file.
        let json = r#"{"salt":"30303030303030303030303030303030",
                       "sha256":"df4bdbe17dab73a803cb436f1b15b6a16ed0154d8388cb5ff213ef850991479d"}"#;
        assert!(serde_json::from_str::<SaltedHash>(json).unwrap().matches("key"));
    }

    #[test]
    fn damaged_hexadecimal_is_refused() {
        for salt in ["", "30", "+0303030303030303030303030303030", "zz303030303030303030303030303030"] {
            let json = format!(r#"{{"salt":"{salt}","sha256":"{}"}}"#, "00".repeat(32));
            assert!(serde_json::from_str::<SaltedHash>(&json).is_err(), "{salt:?}");
        }
    }
}
