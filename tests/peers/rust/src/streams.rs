//! The protocols of ours, on either side of a stream.

use std::io::{Error, ErrorKind, Result};

use futures::{future::try_join, AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::{Control, IncomingStreams};
use tokio::sync::mpsc::UnboundedSender;

pub const ECHO: &str = "/muster/echo/1.0.0"; // what comes goes back, and so does the end
pub const SINK: &str = "/muster/sink/1.0.0"; // answers the end with how many bytes came
pub const ABORT: &str = "/muster/abort/1.0.0"; // resets at the first byte
pub const EARLY: &str = "/muster/early/1.0.0"; // says "first", ends its side, reads to the end

const PATTERN: usize = 1 << 20;

/// The byte at a place of what peerload sends: a mebibyte, over and over.
fn pattern() -> &'static [u8] {
    static MADE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    MADE.get_or_init(|| (0..2 * PATTERN).map(|i| ((i % PATTERN) * 167 >> 3) as u8).collect())
}

fn wrong(text: String) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

async fn open(control: &mut Control, peer: PeerId, name: &'static str) -> Result<Stream> {
    control.open_stream(peer, StreamProtocol::new(name)).await.map_err(|e| wrong(e.to_string()))
}

async fn serve(name: &'static str, mut stream: Stream, heard: UnboundedSender<i64>) -> Result<()> {
    let mut buf = vec![0; 1 << 18];
    let mut got = 0;
    if name == EARLY {
        stream.write_all(b"first").await?;
        stream.close().await?;
    }
    loop {
        let n = stream.read(&mut buf).await?;
        if name == ABORT {
            return Ok(()); // dropped before it ended: a reset
        }
        if n == 0 {
            break;
        }
        got += n;
        if name == ECHO {
            stream.write_all(&buf[..n]).await?;
        }
    }
    if name == SINK {
        stream.write_all(&(got as u64).to_le_bytes()).await?;
    }
    if name == EARLY {
        let _ = heard.send(got as i64);
        return Ok(());
    }
    stream.close().await
}

pub fn serve_all(name: &'static str, mut incoming: IncomingStreams, heard: UnboundedSender<i64>) {
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.next().await {
            let heard = heard.clone();
            tokio::spawn(async move { serve(name, stream, heard).await });
        }
    });
}

async fn send(mut to: impl futures::AsyncWrite + Unpin, total: usize) -> Result<()> {
    let mut at = 0;
    while at < total {
        let n = (total - at).min(1 << 18);
        to.write_all(&pattern()[at % PATTERN..][..n]).await?;
        at += n;
    }
    to.close().await
}

async fn compare(mut from: impl futures::AsyncRead + Unpin, total: usize) -> Result<()> {
    let mut buf = vec![0; 1 << 18];
    let mut got = 0;
    loop {
        let n = from.read(&mut buf).await?;
        if n == 0 {
            break;
        }
        if buf[..n] != pattern()[got % PATTERN..][..n] {
            return Err(wrong("what came back is not what was sent".into()));
        }
        got += n;
    }
    if got != total {
        return Err(wrong(format!("{got} bytes came back, and {total} were sent")));
    }
    Ok(())
}

pub async fn echo(mut control: Control, peer: PeerId, total: usize) -> Result<()> {
    let (from, to) = open(&mut control, peer, ECHO).await?.split();
    try_join(send(to, total), compare(from, total)).await.map(|_| ())
}

pub async fn sink(mut control: Control, peer: PeerId, total: usize) -> Result<()> {
    let (mut from, to) = open(&mut control, peer, SINK).await?.split();
    send(to, total).await?;
    let mut answer = [0; 8];
    from.read_exact(&mut answer).await?;
    match u64::from_le_bytes(answer) as usize {
        got if got == total => Ok(()),
        got => Err(wrong(format!("{got} bytes were counted, and {total} were sent"))),
    }
}

/// Streams that are all open before the first one ends.
pub async fn together(control: Control, peer: PeerId, count: usize, total: usize) -> Result<()> {
    let gate = std::sync::Arc::new(tokio::sync::Barrier::new(count));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (mut control, gate) = (control.clone(), gate.clone());
        tasks.spawn(async move {
            let opened = async {
                let mut stream = open(&mut control, peer, ECHO).await?;
                stream.write_all(&pattern()[..1]).await?;
                stream.flush().await?;
                stream.read_exact(&mut [0]).await?;
                Ok::<_, Error>(stream)
            }
            .await;
            gate.wait().await;
            let (from, to) = opened?.split();
            try_join(send(to, total), compare(from, total)).await.map(|_| ())
        });
    }
    let mut failed = Ok(());
    while let Some(done) = tasks.join_next().await {
        if let Err(error) = done.map_err(|e| wrong(e.to_string())).and_then(|r| r) {
            failed = Err(error);
        }
    }
    failed
}

/// Has a stream reset by the peer, resets one of its own, and opens a third.
pub async fn reset(mut control: Control, peer: PeerId) -> Result<()> {
    let mut stream = open(&mut control, peer, ABORT).await?;
    stream.write_all(b"x").await?;
    stream.flush().await?;
    if let Ok(n @ 1..) = stream.read(&mut [0]).await {
        return Err(wrong(format!("a stream that was to be reset has {n} bytes")));
    }
    let mut stream = open(&mut control, peer, ECHO).await?;
    stream.write_all(b"x").await?;
    stream.flush().await?;
    drop(stream);
    echo(control, peer, 1000).await
}

/// Reads to the end, which comes first, and only then sends.
pub async fn early(mut control: Control, peer: PeerId, total: usize) -> Result<()> {
    let mut stream = open(&mut control, peer, EARLY).await?;
    let mut said = Vec::new();
    stream.flush().await?;
    stream.read_to_end(&mut said).await?;
    if said != b"first" {
        return Err(wrong(format!("{said:?} was said")));
    }
    send(stream, total).await
}

pub async fn try_name(mut control: Control, peer: PeerId, name: String) -> Result<()> {
    let name = StreamProtocol::try_from_owned(name).map_err(|e| wrong(e.to_string()))?;
    control.open_stream(peer, name).await.map(|_| ()).map_err(|e| wrong(e.to_string()))
}
