//! The binary, a folder of models made of fixtures, and a running server.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The bootstrap key of every server here.
pub(crate) const KEY: &str = "a-key-for-the-tests-of-the-cli";

/// A file of the checkout.
pub(crate) fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The binary in a folder of its own, with no setting from outside but where the runtime library is.
pub(crate) fn dichroic(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dichroic"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("DICHROIC_") || ["NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR"].contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.env("DICHROIC_RUNTIME_LIBRARY", checkout("runtime/libonnxruntime.so")).current_dir(folder);
    command
}

pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    dichroic(folder).args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Installs a fixture as a component below `folder/models`.
pub(crate) fn install(folder: &Path, fixture: &str, place: &str) -> PathBuf {
    let target = folder.join("models").join(place);
    fs::create_dir_all(&target).unwrap();
    for entry in fs::read_dir(checkout("tests/fixtures").join(fixture)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
    }
    target
}

/// Puts the classifier in `member` beside that in `dir`, whose manifest then lists it under `id`; also for other languages.
pub(crate) fn put_beside(dir: &Path, id: &str, member: &Path) {
    let even = serde_json::json!({"point": 0.0, "below": 1.0, "above": 1.0});
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["text_classifier"]["ensemble"] = serde_json::json!({"members": [id], "calibration": vec![even; 5]});
    manifest["text_classifier"]["languages"] = "english".into();
    manifest["text_classifier"]["elsewhere"] = id.into();
    fs::create_dir_all(dir.join(id)).unwrap();
    for entry in fs::read_dir(member).unwrap() {
        let name = format!("{id}/{}", entry.as_ref().unwrap().file_name().to_str().unwrap());
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        fs::write(dir.join(&name), &bytes).unwrap();
        let sha256: Vec<String> = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let file = serde_json::json!({"path": name, "bytes": bytes.len(), "sha256": sha256.concat()});
        manifest["files"].as_array_mut().unwrap().push(file);
    }
    fs::write(path, manifest.to_string()).unwrap();
}

/// A server that ends with its value.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    /// The lines of the log until it listened.
    pub(crate) start: Vec<String>,
}

impl Server {
    /// Serves what is installed in `folder` on a free port of the loopback.
    pub(crate) fn start(folder: &Path, environment: &[(&str, &str)]) -> Self {
        let mut process = dichroic(folder)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env("DICHROIC_API_KEY", KEY)
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut seen = Vec::new();
        let address = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let entry = serde_json::from_str::<Value>(&line).unwrap_or_default();
            let address =
                (entry["message"] == "listening").then(|| entry["address"].as_str().unwrap().parse().unwrap());
            seen.push(line);
            address
        });
        let Some(address) = address else {
            let _ = process.wait();
            panic!("the server did not start: {seen:#?}");
        };
        // A full pipe would stop the server.
        thread::spawn(move || lines.for_each(drop));
        Self { process, address, start: seen }
    }

    /// The answer to a request, which must be 200.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        serde_json::from_str(&self.answer(&request)).unwrap()
    }

    /// What stands at a path that needs no key, which must be 200.
    pub(crate) fn get(&self, path: &str) -> String {
        self.answer(&format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"))
    }

    fn answer(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        body.to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
