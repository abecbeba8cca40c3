//! TLS in the process: the certificate, its key, and whose client certificates are let in, from files that are
//! renewed while the server runs.
//!
//! Owns reading and judging the files, what the protocol allows (TLS 1.3 and 1.2, HTTP/1.1 inside), and the move to
//! renewed files: new connections get them, open ones keep theirs. Refuses to start with files that do not fit
//! together; once it serves, it keeps what it has. [`Tls::open`] and [`Tls::reload_if_changed`] read files and belong
//! on the starting thread or a blocking one; handshakes run on the connection's tokio task.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};
use time::{OffsetDateTime, PrimitiveDateTime, format_description::well_known::Rfc3339};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::{NoServerSessionStorage, WebPkiClientVerifier},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};
use x509_parser::parse_x509_certificate;

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Reading failed.
    #[error("the TLS file {path} cannot be read ({cause}); check its owner and mode", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The content is not what the setting asks for.
    #[error("the TLS file {path} cannot be used: {reason}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do. Nothing of a key's file is quoted.
        reason: String,
    },
    /// Each file is sound, yet they are not a pair.
    #[error(
        "the certificate {certificate} does not belong to the key {key}; name the two that were issued together",
        certificate = certificate.display(),
        key = key.display()
    )]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A certificate's time is over, so that clients refuse it.
    #[error("the certificate {path} expired at {until}; renew it", path = path.display(), until = moment(*until))]
    Expired {
        /// The file.
        path: PathBuf,
        /// The first end of a certificate in it.
        until: OffsetDateTime,
    },
    /// A certificate's time has not begun, so that clients refuse it.
    #[error(
        "the certificate {path} is not valid before {from}; check the machine's clock",
        path = path.display(),
        from = moment(*from)
    )]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// The last beginning of a certificate in it.
        from: OffsetDateTime,
    },
    /// The library allows none of the protocols.
    #[error("TLS cannot be set up ({0})")]
    Library(#[from] rustls::Error),
}

/// When all certificates of a chain are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The last beginning.
    pub from: OffsetDateTime,
    /// The first end.
    pub until: OffsetDateTime,
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "valid until {}", moment(self.until))
    }
}

/// What [`Tls::reload_if_changed`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsReload {
    /// The files are as they were last seen.
    Unchanged,
    /// New connections get the new certificate.
    Loaded,
    /// Something changed but cannot be used: the previous certificate stays.
    Kept,
}

/// What is served to connections, and the files it came from.
pub struct Tls {
    files: Files,
    served: RwLock<Served>,
    seen: Mutex<Seen>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a chain of certificates (the server's own first) and its key, all PEM. With `client_ca`, a client must
    /// show a certificate that one of those in that file signed.
    ///
    /// # Errors
    /// A file cannot be read, holds something else, or the key is another certificate's. A certificate that has
    /// expired is none: [`in_force`](Self::in_force) tells it.
    pub fn open(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        let files = Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            client_ca: client_ca.map(Path::to_owned),
        };
        let contents = files.read()?;
        let served = files.judge(&contents)?;
        let seen = Mutex::new(Seen::Contents(contents.digest()));
        let tls = Self { files, served: RwLock::new(served), seen };
        tls.announce();
        Ok(tls)
    }

    /// When the certificates that are served are valid.
    pub fn validity(&self) -> Validity {
        self.served.read().unwrap_or_else(PoisonError::into_inner).validity
    }

    /// Whether clients have to show a certificate.
    pub fn asks_for_client_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Whether clients can accept the certificate at this moment.
    ///
    /// # Errors
    /// [`TlsError::Expired`] or [`TlsError::NotYetValid`].
    pub fn in_force(&self, now: OffsetDateTime) -> Result<(), TlsError> {
        let Validity { from, until } = self.validity();
        let path = || self.files.certificate.clone();
        if now > until {
            Err(TlsError::Expired { path: path(), until })
        } else if now < from {
            Err(TlsError::NotYetValid { path: path(), from })
        } else {
            Ok(())
        }
    }

    /// Reads the files again and serves them to new connections if they changed. The server's start calls this from
    /// a background task every few seconds.
    ///
    /// Files that cannot be used leave the previous ones in service and are logged once, not once a round: while a
    /// renewal has written the certificate and not yet the key, nobody may be turned away.
    pub fn reload_if_changed(&self) -> TlsReload {
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.files.read();
        let now = match &read {
            Ok(contents) => Seen::Contents(contents.digest()),
            Err(error) => Seen::Unreadable(error.to_string()),
        };
        if *last == now {
            return TlsReload::Unchanged;
        }
        *last = now;
        match read.and_then(|contents| self.files.judge(&contents)) {
            Ok(served) => {
                *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
                self.announce();
                TlsReload::Loaded
            }
            Err(error) => {
                tracing::error!(%error, "TLS files not reloaded, the previous certificate stays in service");
                TlsReload::Kept
            }
        }
    }

    /// For the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.served.read().unwrap_or_else(PoisonError::into_inner).config).into()
    }

    fn announce(&self) {
        let (certificate, client_certificates) = (self.validity(), self.asks_for_client_certificates());
        tracing::info!(%certificate, client_certificates, "TLS certificate loaded");
        // Refusing to serve it would help nobody: clients judge for themselves.
        if let Err(error) = self.in_force(OffsetDateTime::now_utc()) {
            tracing::warn!(%error, "clients will refuse the certificate");
        }
    }
}

/// What was last seen of the files: contents are compared, not times, for the same reasons as the key file's.
#[derive(PartialEq, Eq)]
enum Seen {
    Contents([u8; 32]),
    Unreadable(String),
}

/// What connections get. Sessions are remembered in it, so that none outlives the files it was made with.
struct Served {
    config: Arc<ServerConfig>,
    validity: Validity,
}

struct Contents {
    certificate: Vec<u8>,
    key: SecretSlice<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    fn digest(&self) -> [u8; 32] {
        let parts = [&self.certificate, self.key.expose_secret(), self.client_ca.as_deref().unwrap_or_default()];
        // Of digests, so that bytes that move from one file to the next are a change.
        parts.into_iter().fold(Sha256::new(), |all, part| all.chain_update(Sha256::digest(part))).finalize().into()
    }
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        let read = |path: &PathBuf| fs::read(path).map_err(|cause| TlsError::Unreadable { path: path.clone(), cause });
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?.into(),
            client_ca: self.client_ca.as_ref().map(read).transpose()?,
        })
    }

    fn judge(&self, contents: &Contents) -> Result<Served, TlsError> {
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let validity = validity(&self.certificate, &chain)?;
        let provider = Arc::new(ring::default_provider());
        let key = PrivateKeyDer::from_pem_slice(contents.key.expose_secret()).map_err(|_| {
            unusable(
                &self.key,
                "it holds no private key in PEM form (an encrypted one cannot be used); write one with `openssl pkey \
                 -in KEY -out NEW`",
            )
        })?;
        let key = provider.key_provider.load_private_key(key).map_err(|_| {
            unusable(
                &self.key,
                "its key is of no known kind; have a certificate issued for one of RSA, ECDSA P-256 or P-384, or \
                 Ed25519",
            )
        })?;
        let pair = CertifiedKey::new(chain, key);
        pair.keys_match().map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::Mismatch { certificate: self.certificate.clone(), key: self.key.clone() }
            }
            error => damaged(&self.certificate, error),
        })?;

        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(rustls::ALL_VERSIONS)?;
        let builder = match self.client_ca.as_deref().zip(contents.client_ca.as_deref()) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => {
                let mut authorities = RootCertStore::empty();
                for certificate in certificates(path, pem)? {
                    authorities.add(certificate).map_err(|error| damaged(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
                    .build()
                    .map_err(|error| damaged(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        // Without it a client that speaks HTTP/2 alone would be let in and then not understood.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.client_ca.is_some() {
            // A resumed session would not show its certificate again, however long that has been invalid.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Served { config: Arc::new(config), validity })
    }
}

fn unusable(path: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), reason: reason.to_string() }
}

/// What only whoever made the certificate can mend.
fn damaged(path: &Path, reason: impl fmt::Display) -> TlsError {
    unusable(path, format_args!("{reason}; get it again from whoever issued it"))
}

/// Every certificate of a file, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // What the parser says quotes lines of the file, which may be a key's, mistaken for this one.
    let found = found.map_err(|_| damaged(path, "it is damaged"))?;
    if found.is_empty() {
        let reason = "it holds no certificate in PEM form; write it with `openssl x509 -in CERTIFICATE -out NEW`";
        return Err(unusable(path, reason));
    }
    Ok(found)
}

fn validity(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Validity, TlsError> {
    let mut all = Validity { from: PrimitiveDateTime::MIN.assume_utc(), until: PrimitiveDateTime::MAX.assume_utc() };
    for der in chain {
        let (_, certificate) = parse_x509_certificate(der)
            .map_err(|error| damaged(path, format_args!("a certificate is damaged ({error})")))?;
        let own = certificate.validity();
        all.from = all.from.max(own.not_before.to_datetime());
        all.until = all.until.min(own.not_after.to_datetime());
    }
    Ok(all)
}

fn moment(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
