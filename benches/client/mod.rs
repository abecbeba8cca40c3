//! A client for measuring: one keep-alive connection to a server on this machine, HTTP/1.1 with bodies of known length.
//!
//! Shared by `benches/http.rs` and `examples/gauge.rs`. Does as little as it can, because it runs on the cores that it
//! measures. It uses no HTTP client library.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
};

/// One connection.
pub(crate) struct Client {
    stream: BufStream<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Client {
    /// Connects to `address`, which is `127.0.0.1:PORT`.
    pub(crate) async fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufStream::new(stream), line: String::new(), body: Vec::new() })
    }

    /// Sends a request whose head `head_for` made, and reads the whole answer; gives its status and body.
    pub(crate) async fn ask(&mut self, head: &str, body: &[u8]) -> io::Result<(u16, &[u8])> {
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.write_all(body).await?;
        self.stream.flush().await?;
        let status = self.read_line().await?.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("the answer has no status"))?;
        let mut length = None;
        loop {
            let line = self.read_line().await?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        self.body.resize(length.ok_or_else(|| io::Error::other("the answer has no length"))?, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok((status, &self.body))
    }

    async fn read_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.line.trim_end())
    }
}

/// The head of a POST of `length` bytes of JSON.
pub(crate) fn head_for(path: &str, key: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}
