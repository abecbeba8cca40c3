//! The accept loop, over real sockets.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use dichroic::http::{ServeOptions, serve};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::support::{GUARD_IMAGE, GUARD_TEXT, KEY, Server, doubles::SLOW};

pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    task: JoinHandle<std::io::Result<()>>,
}

pub(crate) async fn run(options: ServeOptions) -> Running {
    run_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), options)
}

pub(crate) fn run_on(listener: TcpListener, options: ServeOptions) -> Running {
    let server = Server::new();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(serve(listener, server.router.clone(), options, server.lifecycle.clone()));
    Running { server, address, task }
}

/// A socket of which the kernel takes little at a time: it would swallow a whole answer otherwise.
fn narrow() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(64 << 10).unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket
}

/// A place to serve from, whose connections inherit the narrowness.
pub(crate) fn narrow_listener() -> TcpListener {
    let socket = narrow();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(16).unwrap()
}

/// Asks for the largest answer there is, for which no key is needed.
pub(crate) const LARGE: &[u8] = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";

fn request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn text_request(text: &str) -> String {
    request(GUARD_TEXT, &format!("{{\"text\":\"{text}\"}}"))
}

/// Head and body of one answer.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "closed after {text:?}");
    }
}

pub(crate) async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) async fn stopped(self) {
        timeout(Duration::from_secs(5), self.task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_connection_is_kept() {
    let running = run(ServeOptions::default()).await;
    let mut stream = running.connect().await;
    for _ in 0..3 {
        stream.write_all(text_request("hate=0.9").as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"hate\":0.9"), "{answer}");
    }
    // Two at once are answered in order.
    let two = [text_request("hate=0.1"), text_request("hate=0.2")].concat();
    stream.write_all(two.as_bytes()).await.unwrap();
    let mut both = Vec::new();
    while !String::from_utf8_lossy(&both).contains("\"hate\":0.2") {
        assert!(stream.read_buf(&mut both).await.unwrap() > 0);
    }
    let both = String::from_utf8_lossy(&both);
    assert!(both.find("\"hate\":0.1") < both.find("\"hate\":0.2"));
}

#[tokio::test]
async fn slow_headers_and_idle_connections_are_ended() {
    let options = ServeOptions { header_read_timeout: Duration::from_millis(100), ..ServeOptions::default() };
    let running = run(options).await;
    let mut slow = running.connect().await;
    slow.write_all(b"POST / HTTP/1.1\r\nhost:").await.unwrap();
    let mut idle = running.connect().await;
    idle.write_all(text_request("a").as_bytes()).await.unwrap();
    answer(&mut idle).await;
    let mut rest = Vec::new();
    timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(timeout(Duration::from_secs(5), is_closed(&mut idle)).await.unwrap());
}

#[tokio::test]
async fn who_reads_nothing_of_an_answer_gives_up_the_seat() {
    let header_read_timeout = Duration::from_millis(200);
    let options = ServeOptions { max_connections: 1, header_read_timeout, ..ServeOptions::default() };
    let running = run_on(narrow_listener(), options);
    let mut deaf = running.connect().await;
    deaf.write_all(LARGE).await.unwrap();
    let mut next = running.connect().await;
    next.write_all(text_request("a").as_bytes()).await.unwrap();
    let late = timeout(Duration::from_secs(5), answer(&mut next)).await.unwrap();
    assert!(late.starts_with("HTTP/1.1 200"), "{late}");
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(5), deaf.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200") && rest.len() < 1 << 20, "{} bytes", rest.len());
}

#[tokio::test]
async fn who_reads_slowly_gets_the_whole_answer() {
    let header_read_timeout = Duration::from_millis(500);
    let running = run_on(narrow_listener(), ServeOptions { header_read_timeout, ..ServeOptions::default() });
    let mut slow = narrow().connect(running.address).await.unwrap();
    slow.write_all(LARGE).await.unwrap();
    let start = Instant::now();
    let (mut received, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let length = slow.read(&mut chunk).await.unwrap();
        if length == 0 {
            break;
        }
        received.extend_from_slice(&chunk[..length]);
        sleep(Duration::from_millis(12)).await;
    }
    assert!(start.elapsed() > header_read_timeout, "{:?}", start.elapsed());
    let head = received.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let length = String::from_utf8_lossy(&received[..head])
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    assert_eq!(length, Some(received.len() - head - 4));
}

#[tokio::test]
async fn beyond_the_cap_connections_wait() {
    let running = run(ServeOptions { max_connections: 1, ..ServeOptions::default() }).await;
    let mut first = running.connect().await;
    first.write_all(text_request("a").as_bytes()).await.unwrap();
    answer(&mut first).await;
    let mut second = running.connect().await;
    second.write_all(text_request("a").as_bytes()).await.unwrap();
    assert!(timeout(Duration::from_millis(150), answer(&mut second)).await.is_err());
    drop(first);
    let late = timeout(Duration::from_secs(5), answer(&mut second)).await.unwrap();
    assert!(late.starts_with("HTTP/1.1 200"), "{late}");
}

#[tokio::test]
async fn a_soft_stop_lets_requests_end() {
    let running = run(ServeOptions::default()).await;
    let mut busy = running.connect().await;
    busy.write_all(text_request("reader:slow hate=0.6").as_bytes()).await.unwrap();
    let mut idle = running.connect().await;
    sleep(SLOW / 4).await;
    running.server.lifecycle.soft().cancel();
    let last = answer(&mut busy).await;
    assert!(last.starts_with("HTTP/1.1 200") && last.contains("\"hate\":0.6"), "{last}");
    assert!(is_closed(&mut busy).await && is_closed(&mut idle).await);
    let address = running.address;
    running.stopped().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn nobody_new_is_let_in_while_draining() {
    let running = run(ServeOptions::default()).await;
    let mut busy = running.connect().await;
    busy.write_all(text_request("reader:slow").as_bytes()).await.unwrap();
    sleep(SLOW / 4).await;
    running.server.lifecycle.soft().cancel();
    sleep(SLOW / 8).await;
    assert!(TcpStream::connect(running.address).await.is_err());
    assert!(!running.task.is_finished());
    answer(&mut busy).await;
    running.stopped().await;
}

#[tokio::test]
async fn the_grace_and_the_hard_stop_end_what_does_not_end_by_itself() {
    for hard in [false, true] {
        let grace = if hard { Duration::from_mins(1) } else { Duration::from_millis(50) };
        let running = run(ServeOptions { grace, ..ServeOptions::default() }).await;
        let mut busy = running.connect().await;
        busy.write_all(text_request("reader:slow").as_bytes()).await.unwrap();
        sleep(SLOW / 4).await;
        let start = Instant::now();
        running.server.lifecycle.soft().cancel();
        if hard {
            running.server.lifecycle.hard().cancel();
        }
        assert!(is_closed(&mut busy).await);
        running.stopped().await;
        assert!(start.elapsed() < SLOW, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_refused_upload_gets_its_answer() {
    let running = run(ServeOptions::default()).await;
    let body = format!("{{\"image\":\"{}\"}}", "A".repeat(10 << 20));
    for (from, to, code) in [
        (KEY, "someone-else", "invalid_api_key"),
        (GUARD_IMAGE, GUARD_TEXT, "body_too_large"),
        ("application/json", "text/plain", "unsupported_content_type"),
        (GUARD_IMAGE, "/v1/guardians/sound", "not_found"),
        ("POST", "PUT", "method_not_allowed"),
    ] {
        let mut stream = running.connect().await;
        let request = request(GUARD_IMAGE, &body).replace(from, to);
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await;
        assert!(answer.contains(code), "{answer}");
    }
}

#[tokio::test]
async fn who_waits_to_be_asked_for_a_body_is_refused_without_it() {
    let running = run(ServeOptions::default()).await;
    let head = |key: &str, length: usize| {
        format!(
            "POST {GUARD_IMAGE} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    for (key, length, code) in [("other", 1 << 20, "invalid_api_key"), (KEY, 17 << 20, "body_too_large")] {
        let mut stream = running.connect().await;
        stream.write_all(head(key, length).as_bytes()).await.unwrap();
        let answer = timeout(Duration::from_secs(1), answer(&mut stream)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 4") && answer.contains(code), "{answer}");
    }
    let mut stream = running.connect().await;
    stream.write_all(head(KEY, 2).as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.unwrap();
    assert!(answer(&mut stream).await.contains("missing_field"));
}

#[tokio::test]
async fn who_was_asked_for_a_body_and_is_refused_then_gets_the_answer() {
    let running = run(ServeOptions::default()).await;
    let mut stream = running.connect().await;
    let head = format!(
        "POST {GUARD_IMAGE} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
    let chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![b' '; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..20 {
        stream.write_all(&chunk).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = answer(&mut stream).await;
    assert!(answer.contains("body_too_large"), "{answer}");
}

#[tokio::test]
async fn nonsense_on_the_wire_is_refused_and_nobody_else_notices() {
    let running = run(ServeOptions::default()).await;
    for nonsense in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "POST / HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}\r\n\r\n"] {
        let mut stream = running.connect().await;
        stream.write_all(nonsense.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut reply)).await.unwrap();
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 400"), "{}", reply.escape_ascii());
    }
    let mut stream = running.connect().await;
    stream.write_all(text_request("a").as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn parallel_clients_get_the_answers_of_serial_ones() {
    let running = run(ServeOptions::default()).await;
    let address = running.address;
    let clients: Vec<_> = (0..64)
        .map(|client| {
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                for round in 0..4 {
                    let score = f64::from(client * 4 + round) / 1000.0;
                    stream.write_all(text_request(&format!("hate={score}")).as_bytes()).await.unwrap();
                    let answer = answer(&mut stream).await;
                    assert!(answer.contains(&format!("\"hate\":{score:?},")), "{score}: {answer}");
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}
