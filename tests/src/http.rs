//! A small HTTP/1.1 client, blocking, one connection per request.
//!
//! It hides nothing: raw bytes can be sent, and headers, chunks and events come back as they were.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No single read of a test waits longer.
pub const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Talks to one server.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    address: SocketAddr,
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Header fields in order, names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// The value of a header field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status and header fields.
    pub head: Head,
    /// Decoded body.
    pub body: Vec<u8>,
}

impl Response {
    /// Status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The body as text; bytes that are none show as U+FFFD.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is none; shows it.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("status {}: {error}: {}", self.status(), self.text()),
        }
    }
}

impl Client {
    /// For the server at `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A fresh connection.
    ///
    /// # Errors
    ///
    /// As the system reports.
    pub fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request and reads the head of the answer.
    ///
    /// # Errors
    ///
    /// If the connection fails or the answer is no HTTP.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<(Head, Body)> {
        let mut stream = self.connect()?;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        head.push_str("connection: close\r\n");
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if method == "POST" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        // A server may refuse a large body before it has read it; its answer counts, not the pipe.
        let written = stream.write_all(body);
        match Body::read_head(stream) {
            Ok(answer) => Ok(answer),
            Err(error) => Err(written.err().unwrap_or(error)),
        }
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    ///
    /// As [`Client::send`].
    pub fn request(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Response> {
        let (head, mut reader) = self.send(method, path, fields, body)?;
        let mut body = Vec::new();
        reader.read_to_end(&mut body)?;
        Ok(Response { head, body })
    }

    /// `GET`.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    #[must_use]
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        match self.request("GET", path, &[], &[]) {
            Ok(response) => response,
            Err(error) => panic!("GET {path}: {error}"),
        }
    }

    /// `POST` of JSON.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    #[must_use]
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    /// `POST` of any bytes, called JSON.
    ///
    /// # Panics
    ///
    /// If there is no answer.
    #[must_use]
    #[track_caller]
    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Response {
        match self.request("POST", path, &[("content-type", "application/json")], body) {
            Ok(response) => response,
            Err(error) => panic!("POST {path}: {error}"),
        }
    }
}

/// The body of an answer, decoded as it arrives.
#[derive(Debug)]
pub struct Body {
    reader: BufReader<TcpStream>,
    left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Bytes of a body of known length.
    Known(usize),
    /// Bytes of the current chunk, its line end not counted; at 0 the next chunk's size follows.
    Chunk(usize),
    /// The first chunk's size follows.
    FirstChunk,
    /// A body that ends with the connection.
    Unknown,
    Over,
}

fn invalid(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned())
}

impl Body {
    /// Reads a head from a connection.
    ///
    /// # Errors
    ///
    /// If the connection fails or what comes is no HTTP.
    pub fn read_head(stream: TcpStream) -> std::io::Result<(Head, Self)> {
        let mut reader = BufReader::new(stream);
        let first = read_line(&mut reader)?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid(&format!("no status line: {first:?}")))?;
        let mut fields = Vec::new();
        loop {
            let line = read_line(&mut reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid("no header field"))?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let head = Head { status, fields };
        let length = head.field("content-length").map(str::parse);
        let left = match (head.field("transfer-encoding"), length) {
            (Some("chunked"), _) => Left::FirstChunk,
            (_, Some(Ok(length))) => Left::Known(length),
            (_, Some(Err(_))) => return Err(invalid("content-length is no number")),
            (_, None) => Left::Unknown,
        };
        Ok((head, Self { reader, left }))
    }

    /// The connection, to set timeouts on it.
    #[must_use]
    pub fn connection(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Reads the next chunk's size. Not before it is asked for, or an event would be held back
    /// until the one after it.
    fn next_chunk(&mut self) -> std::io::Result<()> {
        if self.left == Left::Chunk(0) && !read_line(&mut self.reader)?.is_empty() {
            return Err(invalid("a chunk is longer than its size"));
        }
        let line = read_line(&mut self.reader)?;
        let size = usize::from_str_radix(line.split(';').next().unwrap_or("").trim(), 16);
        let size = size.map_err(|_| invalid(&format!("no chunk size: {line:?}")))?;
        self.left = Left::Chunk(size);
        if size == 0 {
            while !read_line(&mut self.reader)?.is_empty() {}
            self.left = Left::Over;
        }
        Ok(())
    }
}

fn read_line(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

impl Read for Body {
    /// An early end of the connection is an error, so that a cut stream is never taken for whole.
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if matches!(self.left, Left::FirstChunk | Left::Chunk(0)) {
            self.next_chunk()?;
        }
        let (limit, is_unknown) = match self.left {
            Left::Over | Left::Known(0) | Left::FirstChunk => return Ok(0),
            Left::Known(left) | Left::Chunk(left) => (left.min(out.len()), false),
            Left::Unknown => (out.len(), true),
        };
        let count = self.reader.read(&mut out[..limit])?;
        if count == 0 && limit > 0 && !is_unknown {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Left::Known(left) | Left::Chunk(left) = &mut self.left {
            *left -= count;
        }
        Ok(count)
    }
}
