//! The accept loop: connections in, connections drained.
//!
//! Owns the listening socket, the cap on connections, the time a client may take over its handshake and its headers
//! and before it takes more of its answer, and the order of stopping: accept no more, let requests in flight end, cut
//! the rest. Refuses to end over an error of `accept`, and to wait there for a client. Runs on the tokio threads, one
//! task a connection.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::server::TlsStream;

use super::tls::Tls;
use crate::lifecycle::{Drained, Lifecycle};

/// How connections are treated.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Connections at once. More wait in the kernel's accept queue.
    pub max_connections: usize,
    /// Time for the TLS handshake, then for a request's headers to arrive; also how long an idle connection is kept,
    /// and how long a client may take nothing of an answer that waits for it.
    pub header_read_timeout: Duration,
    /// Time that requests in flight have to end once the server stops.
    pub grace: Duration,
    /// Plain HTTP without it.
    pub tls: Option<Arc<Tls>>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            header_read_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(20),
            tls: None,
        }
    }
}

/// Pause after an error of `accept` that will not pass at once, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until a soft stop, then drains until a hard stop or the end of the grace. Connections are tasks of
/// `lifecycle`.
///
/// # Errors
/// [`io::Error`] when the socket has no local address, that is when it is none.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    lifecycle: Lifecycle,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, tls = options.tls.is_some(), "listening");
    let graceful = GracefulShutdown::new();
    let seats = Arc::new(Semaphore::new(options.max_connections));
    let mut protocol = http1::Builder::new();
    protocol.timer(TokioTimer::new()).header_read_timeout(options.header_read_timeout).keep_alive(true);

    loop {
        let accepted = async {
            let seat = Arc::clone(&seats).acquire_owned().await;
            (seat, accept(&listener).await)
        };
        let (seat, stream) = tokio::select! {
            biased;
            () = lifecycle.soft().cancelled() => break,
            accepted = accepted => accepted,
        };
        let stream = Impatient::new(stream, options.header_read_timeout);
        let connection = Connection { protocol: protocol.clone(), router: router.clone(), watcher: graceful.watcher() };
        let tls = options.tls.clone();
        let (soft, hard) = (lifecycle.soft().clone(), lifecycle.hard().clone());
        lifecycle.spawn(async move {
            let _seat = seat;
            let talk = async {
                match tls {
                    None => connection.serve(stream).await,
                    Some(tls) => {
                        let encrypted = tokio::select! {
                            encrypted = handshake(&tls, stream, options.header_read_timeout) => encrypted,
                            // Nothing was asked yet, so nothing is lost.
                            () = soft.cancelled() => None,
                        };
                        if let Some(stream) = encrypted {
                            connection.serve(stream).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = talk => {}
                () = hard.cancelled() => {}
            }
        });
    }

    drop(listener);
    tracing::info!(connections = graceful.count(), "draining");
    // The first tells every connection that its present request is the last one; the second ends the wait for them.
    let ((), drained) = tokio::join!(graceful.shutdown(), lifecycle.drain(options.grace));
    match drained {
        Drained::Finished => tracing::info!("drained"),
        Drained::Cut { tasks } => tracing::warn!(tasks, "what did not end in time was cut"),
    }
    Ok(())
}

/// What it takes to talk HTTP over one connection.
struct Connection {
    protocol: http1::Builder,
    router: Router,
    watcher: Watcher,
}

impl Connection {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = TowerToHyperService::new(self.router);
        let connection = self.protocol.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!(%error, "connection ended early");
        }
    }
}

/// A socket that gives its client up when a write has waited for longer than `limit` in which not a byte left.
///
/// hyper bounds how long a request takes to arrive, not how long its answer takes to leave: whoever asked and never
/// read would hold a seat for ever, and needs no key for it. This stands below TLS, where every byte is seen. A kernel
/// tells of room once a third of its buffer is free, so that much is the least a client has to take in that time.
struct Impatient<S = TcpStream> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits; what leaves ends it.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stall: None }
    }

    /// Passes on what came of a write, or that it has waited too long.
    fn judge(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let limit = self.limit;
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(limit)));
        stall.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.judge(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A socket waits in neither of the other two, and having nothing to flush is no sign that a byte left.

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// `None` when the client does not speak TLS, is not let in, or takes too long.
async fn handshake(tls: &Tls, stream: Impatient, limit: Duration) -> Option<TlsStream<Impatient>> {
    match timeout(limit, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("TLS handshake took too long");
            None
        }
    }
}

/// The next connection, however long the errors before it take.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small and written whole: waiting to fill a packet only delays them.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                return stream;
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted; trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the client is gone already, which says nothing about the next one.
fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The server's end of a line on which so many bytes may lie untaken, and the client's.
    fn line(room: usize) -> (Impatient<DuplexStream>, DuplexStream) {
        let (server, client) = duplex(room);
        (Impatient::new(server, LIMIT), client)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_in_time() {
        let (mut server, _client) = line(10);
        server.write_all(&[0; 10]).await.unwrap();
        sleep(3 * LIMIT).await;
        let start = Instant::now();
        let error = server.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let waited = start.elapsed();
        assert!(waited >= LIMIT && waited < 2 * LIMIT, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_little_but_goes_on_gets_everything() {
        let (mut server, mut client) = line(1);
        let taking = async {
            for _ in 0..10 {
                sleep(LIMIT * 9 / 10).await;
                client.read_u8().await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(server.write_all(&[0; 11]), taking);
        written.unwrap();
    }

    #[test]
    fn only_a_client_that_left_is_passed_over_without_a_pause() {
        for (kind, passed_over) in [
            (io::ErrorKind::ConnectionAborted, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::OutOfMemory, false),
            (io::ErrorKind::Other, false),
        ] {
            assert_eq!(concerns_one_connection(&kind.into()), passed_over, "{kind}");
        }
    }
}
