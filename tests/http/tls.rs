//! TLS over real sockets: who gets in, what is shown to them, and files that change underneath.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use dichroic::http::{ServeOptions, Tls, TlsReload};
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ALL_VERSIONS, ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

use crate::{
    logs::Lines,
    serving::{LARGE, Running, answer, is_closed, narrow_listener, run, run_on, text_request},
};

/// Longer than anything here takes that is not stuck.
const SOON: Duration = Duration::from_secs(5);

/// One that signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// What it signed, with its key.
struct Issued {
    certificate: Certificate,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, usage: ExtendedKeyUsagePurpose) -> Issued {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages.push(usage);
        let key = KeyPair::generate().unwrap();
        Issued { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    fn for_server(&self) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn for_client(&self) -> Issued {
        self.issue(ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A client that believes this authority, and shows what it was given, if anything.
    fn client(&self, versions: &[&'static SupportedProtocolVersion], shown: Option<&Issued>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let key = PrivateKeyDer::from_pem_slice(shown.key.serialize_pem().as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![shown.certificate.der().clone()], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config).into()
    }
}

/// The files that a server reads.
struct Files {
    folder: TempDir,
}

impl Files {
    fn of(issued: &Issued) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        files.write(issued);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn write(&self, issued: &Issued) {
        self.put("tls.crt", &issued.certificate.pem());
        self.put("tls.key", &issued.key.serialize_pem());
    }

    fn open(&self) -> Arc<Tls> {
        Arc::new(Tls::open(&self.path("tls.crt"), &self.path("tls.key"), None).unwrap())
    }

    /// As `open`, for clients of one authority.
    fn open_to(&self, clients: &Authority) -> Arc<Tls> {
        self.put("clients.crt", &clients.certificate.pem());
        let client_ca = self.path("clients.crt");
        Arc::new(Tls::open(&self.path("tls.crt"), &self.path("tls.key"), Some(&client_ca)).unwrap())
    }

    fn refusal(&self) -> String {
        Tls::open(&self.path("tls.crt"), &self.path("tls.key"), None)
            .unwrap_err()
            .to_string()
            .replace(&self.folder.path().display().to_string(), "DIR")
    }
}

async fn serve(tls: &Arc<Tls>) -> Running {
    run(ServeOptions { tls: Some(Arc::clone(tls)), ..ServeOptions::default() }).await
}

async fn connect(client: &TlsConnector, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    client.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

async fn ask(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(text_request("hate=0.9").as_bytes()).await.unwrap();
    let answer = answer(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"hate\":0.9"), "{answer}");
}

/// Whether the server breaks off before it says anything over HTTP. A client of TLS 1.3 believes itself connected
/// before its certificate was looked at, so the refusal may come in place of the answer.
async fn is_refused(client: &TlsConnector, address: SocketAddr) -> bool {
    let attempt = async {
        let mut stream = connect(client, address).await?;
        stream.write_all(text_request("a").as_bytes()).await?;
        stream.read_u8().await
    };
    timeout(SOON, attempt).await.unwrap().is_err()
}

#[tokio::test]
async fn both_protocols_get_an_answer_over_http_1() {
    let authority = Authority::new("servers");
    let running = serve(&Files::of(&authority.for_server()).open()).await;
    for (version, name) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let mut stream = connect(&authority.client(&[version], None), running.address).await.unwrap();
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(name));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]), "HTTP/2 was offered and is not spoken");
        ask(&mut stream).await;
        ask(&mut stream).await;
    }
    let stranger = Authority::new("others").client(ALL_VERSIONS, None);
    assert!(connect(&stranger, running.address).await.is_err(), "a client judges the certificate");
}

#[tokio::test]
async fn plain_http_is_turned_away_at_once() {
    let authority = Authority::new("servers");
    let running = serve(&Files::of(&authority.for_server()).open()).await;
    let mut plain = running.connect().await;
    plain.write_all(text_request("a").as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    // However it ends: long before the time for a handshake is over.
    let _ = timeout(SOON, plain.read_to_end(&mut reply)).await.unwrap();
    assert!(!reply.starts_with(b"HTTP"), "{}", reply.escape_ascii());
    ask(&mut connect(&authority.client(ALL_VERSIONS, None), running.address).await.unwrap()).await;
}

#[tokio::test]
async fn a_silent_client_holds_nobody_up_and_is_let_go() {
    let authority = Authority::new("servers");
    let limit = Duration::from_secs(2);
    let tls = Some(Files::of(&authority.for_server()).open());
    let running = run(ServeOptions { header_read_timeout: limit, tls, ..ServeOptions::default() }).await;
    let mut silent = running.connect().await;
    let mut stream = connect(&authority.client(ALL_VERSIONS, None), running.address).await.unwrap();
    ask(&mut stream).await;
    assert!(timeout(Duration::from_millis(20), is_closed(&mut silent)).await.is_err(), "it still has time");
    assert!(timeout(SOON, is_closed(&mut silent)).await.unwrap());
}

#[tokio::test]
async fn a_handshake_is_a_connection() {
    let authority = Authority::new("servers");
    let tls = Some(Files::of(&authority.for_server()).open());
    let running = run(ServeOptions { max_connections: 1, tls, ..ServeOptions::default() }).await;
    let silent = running.connect().await;
    let client = authority.client(ALL_VERSIONS, None);
    let mut waiting = Box::pin(connect(&client, running.address));
    assert!(timeout(Duration::from_millis(150), &mut waiting).await.is_err());
    drop(silent);
    ask(&mut timeout(SOON, waiting).await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn who_reads_nothing_of_an_answer_gives_up_the_seat() {
    let authority = Authority::new("servers");
    let tls = Some(Files::of(&authority.for_server()).open());
    // Time enough for a handshake.
    let header_read_timeout = Duration::from_secs(1);
    let options = ServeOptions { max_connections: 1, header_read_timeout, tls, ..ServeOptions::default() };
    let running = run_on(narrow_listener(), options);
    let client = authority.client(ALL_VERSIONS, None);
    let mut deaf = connect(&client, running.address).await.unwrap();
    deaf.write_all(LARGE).await.unwrap();
    let mut next = timeout(SOON, connect(&client, running.address)).await.unwrap().unwrap();
    ask(&mut next).await;
    let mut rest = Vec::new();
    // Cut off without the goodbye of TLS.
    assert!(timeout(SOON, deaf.read_to_end(&mut rest)).await.unwrap().is_err());
    assert!(rest.starts_with(b"HTTP/1.1 200") && rest.len() < 1 << 20, "{} bytes", rest.len());
}

#[tokio::test]
async fn a_stop_ends_requests_and_does_not_wait_for_handshakes() {
    let authority = Authority::new("servers");
    let running = serve(&Files::of(&authority.for_server()).open()).await;
    let mut silent = running.connect().await;
    let mut busy = connect(&authority.client(ALL_VERSIONS, None), running.address).await.unwrap();
    busy.write_all(text_request("reader:slow hate=0.6").as_bytes()).await.unwrap();
    tokio::time::sleep(crate::support::doubles::SLOW / 4).await;
    running.server.lifecycle.soft().cancel();
    assert!(timeout(SOON, is_closed(&mut silent)).await.unwrap());
    assert!(answer(&mut busy).await.contains("\"hate\":0.6"));
    // A clean end: a torn one would be an error.
    assert_eq!(timeout(SOON, busy.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    running.stopped().await;
}

#[tokio::test]
async fn only_clients_of_the_named_authority_get_in() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let tls = Files::of(&servers.for_server()).open_to(&clients);
    assert!(tls.asks_for_client_certificates());
    let running = serve(&tls).await;
    for version in ALL_VERSIONS {
        let versions = &[*version];
        let known = servers.client(versions, Some(&clients.for_client()));
        ask(&mut connect(&known, running.address).await.unwrap()).await;
        for (why, shown) in [
            ("none", None),
            ("another authority's of the same name", Some(Authority::new("clients").for_client())),
            ("the servers' authority's", Some(servers.for_client())),
            ("one for servers", Some(clients.for_server())),
        ] {
            let client = servers.client(versions, shown.as_ref());
            assert!(is_refused(&client, running.address).await, "{why}, {version:?}");
        }
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let authority = Authority::new("servers");
    let (old, new) = (authority.for_server(), authority.for_server());
    let files = Files::of(&old);
    let tls = files.open();
    let running = serve(&tls).await;
    let client = authority.client(ALL_VERSIONS, None);
    let mut before = connect(&client, running.address).await.unwrap();
    assert_eq!(shown(&before), *old.certificate.der());
    assert_eq!(tls.reload_if_changed(), TlsReload::Unchanged);
    files.write(&new);
    assert_eq!(tls.reload_if_changed(), TlsReload::Loaded);
    let mut after = connect(&client, running.address).await.unwrap();
    assert_eq!(shown(&after), *new.certificate.der());
    ask(&mut before).await;
    ask(&mut after).await;
}

#[tokio::test]
async fn an_authority_of_clients_that_is_replaced_lets_none_of_its_clients_in() {
    let (servers, old, new) = (Authority::new("servers"), Authority::new("clients"), Authority::new("clients"));
    let files = Files::of(&servers.for_server());
    let tls = files.open_to(&old);
    let running = serve(&tls).await;
    for version in ALL_VERSIONS {
        files.put("clients.crt", &old.certificate.pem());
        tls.reload_if_changed();
        // One client, which would resume its session if it could.
        let client = servers.client(&[*version], Some(&old.for_client()));
        ask(&mut connect(&client, running.address).await.unwrap()).await;
        files.put("clients.crt", &new.certificate.pem());
        assert_eq!(tls.reload_if_changed(), TlsReload::Loaded);
        assert!(is_refused(&client, running.address).await, "{version:?}");
    }
}

#[tokio::test]
async fn damaged_files_leave_the_old_certificate_and_are_told_once() {
    let authority = Authority::new("servers");
    let (old, new) = (authority.for_server(), authority.for_server());
    let files = Files::of(&old);
    let tls = files.open();
    let running = serve(&tls).await;
    let client = authority.client(ALL_VERSIONS, None);
    let pem = new.certificate.pem();
    let (lines, _guard) = Lines::collect("error");
    let damages = [String::new(), "garbage".to_owned(), pem[..pem.len() / 2].to_owned(), pem.replace('M', "N"), pem];
    for (count, damage) in damages.iter().enumerate() {
        files.put("tls.crt", damage);
        assert_eq!(tls.reload_if_changed(), TlsReload::Kept, "{damage}");
        assert_eq!(tls.reload_if_changed(), TlsReload::Unchanged);
        assert_eq!(lines.entries().len(), count + 1);
        let mut stream = connect(&client, running.address).await.unwrap();
        assert_eq!(shown(&stream), *old.certificate.der());
        ask(&mut stream).await;
    }
    // The last was the renewed certificate without its key, as a renewal that is half done.
    assert!(lines.entries()[4]["fields"]["error"].as_str().unwrap().contains("does not belong to the key"));
    fs::remove_file(files.path("tls.key")).unwrap();
    assert_eq!(tls.reload_if_changed(), TlsReload::Kept);
    assert_eq!(tls.reload_if_changed(), TlsReload::Unchanged);
    assert_eq!(lines.entries().len(), 6);
    files.write(&new);
    assert_eq!(tls.reload_if_changed(), TlsReload::Loaded);
    assert_eq!(shown(&connect(&client, running.address).await.unwrap()), *new.certificate.der());
}

#[test]
fn files_that_cannot_be_used_are_named_and_not_quoted() {
    let authority = Authority::new("servers");
    let issued = authority.for_server();
    let files = Files::of(&issued);
    let (certificate, key) = (issued.certificate.pem(), issued.key.serialize_pem());
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let one_line = key.replace('\n', "");
    for (certificate, key, refusal) in [
        ("", &*key, "the TLS file DIR/tls.crt cannot be used: it holds no certificate in PEM form"),
        (&key, &key, "the TLS file DIR/tls.crt cannot be used: it holds no certificate in PEM form"),
        (&certificate[..certificate.len() / 2], &key, "the TLS file DIR/tls.crt cannot be used: it is damaged"),
        (&certificate, "", "the TLS file DIR/tls.key cannot be used: it holds no private key in PEM form"),
        (&certificate, &certificate, "the TLS file DIR/tls.key cannot be used: it holds no private key in PEM form"),
        (&certificate, &encrypted, "the TLS file DIR/tls.key cannot be used: it holds no private key in PEM form"),
        (&certificate, &one_line, "the TLS file DIR/tls.key cannot be used: it holds no private key in PEM form"),
        (
            &certificate,
            &authority.for_server().key.serialize_pem(),
            "the certificate DIR/tls.crt does not belong to the key DIR/tls.key; name the two",
        ),
    ] {
        files.put("tls.crt", certificate);
        files.put("tls.key", key);
        let refused = files.refusal();
        assert!(refused.starts_with(refusal) && !refused.contains("BEGIN"), "{refused}");
        let remedies = ["`openssl pkey ", "`openssl x509 ", "get it again from ", "name the two that "];
        assert!(refused.split_once("; ").is_some_and(|(_, told)| remedies.iter().any(|remedy| told.contains(remedy))));
    }
    fs::remove_file(files.path("tls.key")).unwrap();
    assert!(files.refusal().starts_with("the TLS file DIR/tls.key cannot be read ("), "{}", files.refusal());
}

#[test]
fn the_end_of_a_chain_is_that_of_its_first_to_expire() {
    let authority = Authority::new("servers");
    let mut short = CertificateParams::new(["localhost".to_owned()]).unwrap();
    short.not_before = rcgen::date_time_ymd(2001, 1, 1);
    short.not_after = rcgen::date_time_ymd(2002, 1, 1);
    let issued = authority.for_server();
    let between = short.signed_by(&KeyPair::generate().unwrap(), &authority.issuer).unwrap();
    let files = Files::of(&issued);
    let now = rcgen::date_time_ymd(2026, 1, 1);
    files.open().in_force(now).unwrap();
    files.put("tls.crt", &[issued.certificate.pem(), between.pem()].concat());
    let tls = files.open();
    assert_eq!(tls.validity().until, short.not_after);
    assert!(tls.in_force(now).unwrap_err().to_string().ends_with("tls.crt expired at 2002-01-01T00:00:00Z; renew it"));
    let early = tls.in_force(rcgen::date_time_ymd(1960, 1, 1)).unwrap_err().to_string();
    assert!(early.contains("is not valid before ") && early.ends_with("check the machine's clock"), "{early}");
}
