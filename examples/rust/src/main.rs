//! Asks all four operations of a Dichroic server.
//!
//! ```text
//! DICHROIC_URL=http://127.0.0.1:8080 DICHROIC_KEY=dk_… cargo run --manifest-path examples/rust/Cargo.toml [model]
//! ```

use std::{env, error::Error, fmt, process::ExitCode, thread::sleep, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use ureq::{Agent, http::header};

const TRIES: u32 = 5;

/// A picture of eight by eight pixels. Yours: `std::fs::read("picture.png")?`
const PICTURE: &[u8] = include_bytes!("../picture.png");

/// The server's error: `code` is the word to act on, `request_id` finds it in the server's log.
#[derive(Debug)]
struct Refused {
    status: u16,
    code: String,
    message: String,
    request_id: String,
}

impl Refused {
    fn new(status: u16, body: &Value) -> Self {
        let word = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
        Self { status, code: word("code"), message: word("message"), request_id: word("request_id") }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, code, message, request_id } = self;
        write!(f, "{status} {code}: {message} (request {request_id})")
    }
}

impl Error for Refused {}

struct Client {
    agent: Agent,
    url: String,
    authorization: String,
}

impl Client {
    fn new(url: String, key: &str) -> Self {
        // Errors have a body worth reading, so a status is no error of the transport.
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_mins(1)));
        Self { agent: config.build().into(), url, authorization: format!("Bearer {key}") }
    }

    /// The answer to `body`. Waits and asks again when the server says so.
    fn ask(&self, path: &str, body: &Value) -> Result<Value, Box<dyn Error>> {
        let mut attempt = 1;
        loop {
            let request = self.agent.post(format!("{}{path}", self.url));
            let mut answer = request.header(header::AUTHORIZATION, &self.authorization).send_json(body)?;
            let said: Value = answer.body_mut().read_json()?;
            match answer.status().as_u16() {
                200 => return Ok(said),
                429 if attempt < TRIES => {
                    let seconds = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
                    sleep(Duration::from_secs(seconds.and_then(|value| value.parse().ok()).unwrap_or(1)));
                    attempt += 1;
                }
                status => return Err(Refused::new(status, &said).into()),
            }
        }
    }
}

fn main() -> ExitCode {
    let url = env::var("DICHROIC_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let Ok(key) = env::var("DICHROIC_KEY") else {
        eprintln!("set DICHROIC_KEY to an API key");
        return ExitCode::FAILURE;
    };
    let model = env::args().nth(1).unwrap_or_else(|| "alpha-4o-mini".to_owned());
    let client = Client::new(url, &key);
    let questions = [
        ("/v1/prisms/text", json!({"text": "My train is half an hour late again.", "model": model})),
        ("/v1/sunshines/text", json!({"text": "I have an exam tomorrow and I am nervous.", "model": model})),
        (
            "/v1/guardians/text",
            json!({"text": "I will find you and hurt you.", "score_threshold": 0.5, "model": model}),
        ),
        ("/v1/guardians/image", json!({"image": BASE64_STANDARD.encode(PICTURE), "model": model})),
    ];
    for (path, body) in questions {
        match client.ask(path, &body) {
            Ok(answer) => println!("{path} {answer}"),
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
