//! Graphs with operators of ours opened side by side by a process that has opened none: what a server does as it starts.

use std::{
    env, hint,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use dichroic::runtime::Runtime;

/// Processes that try. Of those whose threads registered a domain of operators without waiting for each other, one in
/// fifteen failed.
const TRIES: usize = 40;

#[test]
fn the_first_graphs_of_a_process_open_side_by_side() {
    for _ in 0..TRIES {
        let mut one = Command::new(env::current_exe().unwrap());
        let ended = one.args(["--ignored", "--exact", "two_threads_open_the_first_two_graphs"]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }
}

#[test]
#[ignore = "it is told something in a process of its own"]
fn two_threads_open_the_first_two_graphs() {
    let runtime = Runtime::load(Path::new("runtime/libonnxruntime.so"), 2).unwrap();
    let there = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                there.fetch_add(1, Ordering::SeqCst);
                while there.load(Ordering::SeqCst) < 2 {
                    hint::spin_loop();
                }
                runtime.open_classifier(Path::new("tests/fixtures/tiny-encoder/32.onnx"), 1, 0).unwrap();
            });
        }
    });
}
