//! The little HTTP that it takes to ask etcd what it tells over HTTP only.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Codes of good answers: with a body, and without.
const GOOD: [&str; 2] = ["200", "204"];

/// Longest answer that has nothing to say.
const MAX_EMPTY_ANSWER: u64 = 4096;

/// Sends one GET and returns the body of a good answer of at most `limit` bytes, head included. HTTP/1.0, so that the answer
/// comes in one piece and ends with the connection.
pub(crate) async fn get(stream: impl AsyncRead + AsyncWrite + Unpin, path: &str, limit: u64) -> io::Result<Vec<u8>> {
    exchange(stream, format!("GET {path} HTTP/1.0\r\nHost: etcd\r\n\r\n").as_bytes(), limit).await
}

/// Sends one POST with these header fields and this body; the answer to it is good and empty, or else this is an error.
pub(crate) async fn post(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    fields: &[(&str, String)],
    body: &[u8],
) -> io::Result<()> {
    let length = body.len();
    let mut request = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n");
    for (name, value) in fields {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    let request = [request.as_bytes(), b"\r\n", body].concat();
    exchange(stream, &request, MAX_EMPTY_ANSWER).await.map(|_| ())
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    let mut limited = stream.take(limit);
    // The end of the connection is not waited for if the answer says how long it is: etcd may keep it for half a second.
    while whole(&answer).is_none() {
        match limited.read_buf(&mut answer).await {
            Ok(0) => break,
            Ok(_) => {}
            // Over TLS an end without a farewell is an error; whether all has come is told by the length.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    if limited.limit() == 0 {
        return Err(invalid("the answer is longer than expected"));
    }
    body(&answer)
}

/// The head of an answer and what follows it, once the head is there.
fn parts(answer: &[u8]) -> Option<(std::borrow::Cow<'_, str>, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]))
}

/// Length of the body by the head, if it says so.
fn length(head: &str) -> Option<usize> {
    if code(head) == Some("204") {
        return Some(0);
    }
    let fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
    fields
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, value)| value.trim().parse().ok())
}

fn code(head: &str) -> Option<&str> {
    head.split("\r\n").next()?.split(' ').nth(1)
}

/// `Some` once the answer is as long as it says.
fn whole(answer: &[u8]) -> Option<()> {
    let (head, body) = parts(answer)?;
    (body.len() >= length(&head)?).then_some(())
}

/// The body of an answer, if it is whole and good.
fn body(answer: &[u8]) -> io::Result<Vec<u8>> {
    let (head, body) = parts(answer).ok_or_else(|| invalid("it is no answer"))?;
    if !code(&head).is_some_and(|code| GOOD.contains(&code)) {
        let status = head.split("\r\n").next().unwrap_or_default();
        return Err(io::Error::other(format!("it answered {status:?}")));
    }
    if length(&head).is_some_and(|length| length != body.len()) {
        return Err(invalid("the answer is cut off"));
    }
    Ok(body.to_vec())
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_is_taken_whole_and_good_or_not_at_all() {
        for (name, answer, expected) in [
            ("with a length", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", Some("hi")),
            ("without", "HTTP/1.0 200 OK\r\nX: y\r\n\r\nhi", Some("hi")),
            ("empty", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Some("")),
            ("cut off", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nhi", None),
            ("without content", "HTTP/1.0 204 No Content\r\n\r\n", Some("")),
            ("not found", "HTTP/1.0 404 Not Found\r\nContent-Length: 2\r\n\r\nhi", None),
            ("no head", "hello", None),
            ("nothing", "", None),
        ] {
            let (near, mut far) = tokio::io::duplex(1024);
            far.write_all(answer.as_bytes()).await.unwrap();
            far.shutdown().await.unwrap();
            let body = get(near, "/", 1000).await;
            assert_eq!(body.ok().map(|body| String::from_utf8(body).unwrap()).as_deref(), expected, "{name}");
        }
        // One whose sender keeps the connection.
        let (near, mut far) = tokio::io::duplex(1024);
        far.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
        assert_eq!(get(near, "/", 1000).await.unwrap(), b"hi");
        let (near, mut far) = tokio::io::duplex(1024);
        far.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(500)).as_bytes()).await.unwrap();
        assert!(get(near, "/", 300).await.is_err());
    }
}
