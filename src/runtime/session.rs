//! The ONNX Runtime library of the process, and sessions opened through it.

use std::{
    fmt::Display,
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use ort::{
    environment::{Environment, GlobalThreadPoolOptions},
    ep::{ArenaExtendStrategy, CUDA, ExecutionProviderDispatch, cuda::ConvAlgorithmSearch},
    memory::AllocationDevice,
    operator::OperatorDomain,
    session::{Session, builder::SessionBuilder},
    value::Tensor,
};

use super::{
    RuntimeError,
    encoder::{self, Kernels},
    instructions::Instructions,
    kv, products,
};
use crate::domain::Device;

/// The library allows one environment a process, so it is kept for the process's life.
static RUNTIME: OnceLock<Result<Environment, RuntimeError>> = OnceLock::new();

/// Whether ONNX Runtime knows the domain of our operators for generators, and for text classifiers. A session whose domain
/// it does not know adds it, and fails if another thread has done so since it looked: the first one is opened alone.
static PRODUCTS: Mutex<bool> = Mutex::new(false);
static LAYERS: Mutex<bool> = Mutex::new(false);

/// The loaded library with its one thread pool, which all sessions share but those of text classifiers and generators
/// ([`Runtime::open_generator`]).
#[derive(Clone)]
pub struct Runtime {
    environment: Environment,
    threads: usize,
    device: Device,
    /// What operators of ours, which stand for ONNX Runtime's, are to compute with; none where none are to stand.
    ours: Option<Instructions>,
    profiles: Option<Arc<Profiles>>,
}

/// Where sessions write what their nodes took.
struct Profiles {
    folder: PathBuf,
    opened: AtomicUsize,
}

impl Runtime {
    /// Loads the shared library at `path` and makes a pool of `threads`. Later calls give the first call's runtime.
    ///
    /// # Errors
    /// [`RuntimeError::Library`] when the file is missing, no ONNX Runtime, or too old.
    pub fn load(path: &Path, threads: usize) -> Result<Self, RuntimeError> {
        let environment = RUNTIME.get_or_init(|| {
            kv::give_back_large_pieces();
            // The binding panics over a library that is no ONNX Runtime or lacks the interface's version.
            catch_unwind(|| start(path, threads)).unwrap_or_else(|_| {
                Err(RuntimeError::Library(format!("{} is no ONNX Runtime of a fitting version", path.display())))
            })
        });
        let ours = Instructions::of_this_processor().next();
        environment.clone().map(|environment| Self { environment, threads, device: Device::Cpu, ours, profiles: None })
    }

    /// The same runtime with operators of ours by these instructions instead of by the best; without any, or any that this
    /// processor has, with ONNX Runtime's own alone, in generators and text classifiers.
    #[must_use]
    pub fn with_instructions(self, ours: Option<Instructions>) -> Self {
        Self { ours: ours.filter(|ours| ours.are_here()), ..self }
    }

    /// The same runtime, whose sessions each write a profile into a folder when they are closed: a JSON file with the time of
    /// every node of every pass, in ONNX Runtime's form. Passes are slower meanwhile.
    #[must_use]
    pub fn profiled(self, folder: PathBuf) -> Self {
        Self { profiles: Some(Arc::new(Profiles { folder, opened: AtomicUsize::new(0) })), ..self }
    }

    /// The same runtime with a GPU for its sessions, the first that the process sees (`CUDA_VISIBLE_DEVICES` says which
    /// it sees).
    ///
    /// # Errors
    /// [`RuntimeError::Device`], in the library's own words, when it has no CUDA provider, or finds none of CUDA's
    /// libraries, no driver or no GPU.
    pub fn on_cuda(self) -> Result<Self, RuntimeError> {
        let device = |error: ort::Error| RuntimeError::Device(error.to_string());
        // Registering the provider loads its libraries; only a copy into a GPU's memory proves a driver and a GPU.
        Tensor::from_array(([1], vec![0.0_f32])).map_err(device)?.to(AllocationDevice::CUDA, 0).map_err(device)?;
        Ok(Self { device: Device::Cuda, ours: None, ..self })
    }

    /// What its sessions compute on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether it has operators of ours in place of ONNX Runtime's.
    pub fn has_operators(&self) -> bool {
        self.ours.is_some()
    }

    /// Version and build of the library.
    pub fn build_info(&self) -> &'static str {
        ort::info()
    }

    /// Opens a graph.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when the file is no graph this library can run.
    pub fn open(&self, graph: &Path) -> Result<Session, RuntimeError> {
        self.open_with(graph, None)
    }

    /// Opens a generator's graph with threads that keep awake through a pass and sleep between two, as a pass is hundreds of
    /// short operators, and waking a thread for each takes longer than some of them; with products of ours
    /// ([`super::products`]) where the processor has the instructions and the graph such products. Says whether it has.
    ///
    /// # Errors
    /// As [`Runtime::open`].
    pub fn open_generator(&self, graph: &Path) -> Result<(Session, bool), RuntimeError> {
        self.open_changed(graph, self.threads, products::with_products, products::domain, &PRODUCTS)
    }

    /// Opens a text classifier's graph as [`Runtime::open_generator`] does, with layers of ours ([`super::encoder`]) instead,
    /// for the worker of this number, from 0, of `workers` that share the threads. Of those that are left over in sharing the
    /// first workers have one each.
    ///
    /// # Errors
    /// As [`Runtime::open`].
    pub fn open_classifier(
        &self,
        graph: &Path,
        workers: usize,
        number: usize,
    ) -> Result<(Session, bool), RuntimeError> {
        let domain = |with, threads| encoder::domain(Kernels::of(with), threads);
        self.open_changed(graph, share(self.threads, workers, number), encoder::with_whole_layers, domain, &LAYERS)
    }

    /// Opens a graph with operators of ours, of a domain made for so many threads, where the processor has what they need
    /// and a change of the graph finds what they are for.
    fn open_changed(
        &self,
        graph: &Path,
        threads: usize,
        change: fn(&[u8]) -> Option<Vec<u8>>,
        domain: impl Fn(Instructions, usize) -> Result<OperatorDomain, ort::Error>,
        known: &Mutex<bool>,
    ) -> Result<(Session, bool), RuntimeError> {
        let changed = self.ours.and_then(|with| Some((with, change(&fs::read(graph).ok()?)?)));
        let Some((instructions, changed)) = changed else {
            return Ok((self.open_with(graph, Some(threads))?, false));
        };
        tracing::debug!(graph = %graph.display(), ?instructions, "operators of ours");
        let open = || {
            let folder = graph.parent().and_then(Path::to_str).ok_or_else(|| ort::Error::new("its path is no text"))?;
            self.builder(Some(threads))?
                .with_operators(domain(instructions, threads)?)?
                // The graph is in memory, and its weights lie beside the file that it is of.
                .with_config_entry("session.model_external_initializers_file_folder_path", folder)?
                .commit_from_memory(&changed)
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let session = if *known {
            drop(known);
            open()
        } else {
            let session = open();
            *known = session.is_ok();
            session
        };
        Ok((session.map_err(|error: ort::Error| cannot_open(graph, &error))?, true))
    }

    fn open_with(&self, graph: &Path, own_threads: Option<usize>) -> Result<Session, RuntimeError> {
        let load = |error: ort::Error| cannot_open(graph, &error);
        self.builder(own_threads).map_err(load)?.commit_from_file(graph).map_err(load)
    }

    fn builder(&self, own_threads: Option<usize>) -> Result<SessionBuilder, ort::Error> {
        let mut builder = Session::builder(&self.environment)?;
        if let Some(threads) = own_threads {
            builder = builder
                .with_independent_thread_pool()?
                .with_intra_threads(threads)?
                .with_intra_op_spinning(true)?
                .with_config_entry("session.force_spinning_stop", "1")?;
        }
        if let Some(Profiles { folder, opened }) = self.profiles.as_deref() {
            // The library adds the second, in which several may be opened.
            let number = opened.fetch_add(1, Ordering::Relaxed);
            builder = builder.with_profiling(folder.join(format!("{number}")))?;
        }
        // Shapes change with every batch: patterns of past shapes would only hold memory.
        Ok(builder.with_memory_pattern(false)?.with_execution_providers(providers(self.device))?)
    }
}

/// The threads of the worker of this number among so many: at least one.
fn share(threads: usize, workers: usize, number: usize) -> usize {
    (threads.saturating_sub(number)).div_ceil(workers.max(1)).max(1)
}

fn cannot_open(graph: &Path, error: &dyn Display) -> RuntimeError {
    RuntimeError::Load(format!(
        "{} cannot be opened ({error}); give it more memory, name an ONNX Runtime that knows its operators as \
         runtime_library, or export the model for this one",
        graph.display()
    ))
}

/// What a session computes with before the CPU provider, which takes the nodes that nothing else has a kernel for.
fn providers(device: Device) -> Vec<ExecutionProviderDispatch> {
    let cuda = || {
        CUDA::default()
            // By default an arena doubles with each extension, and several sessions share a GPU's memory.
            .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
            // The default tries every algorithm anew for each shape, and pages of pictures have all shapes.
            .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic)
            .build()
            // Otherwise the library would fall back to the CPU and say nothing.
            .error_on_failure()
    };
    match device {
        Device::Cpu => Vec::new(),
        Device::Cuda => vec![cuda()],
    }
}

fn start(path: &Path, threads: usize) -> Result<Environment, RuntimeError> {
    let library = |error: &dyn Display| RuntimeError::Library(error.to_string());
    if !path.is_file() {
        return Err(RuntimeError::Library(format!("{} does not exist", path.display())));
    }
    // A bare name would be searched on the system's library path; the checked file must be the one that is loaded.
    let path = path.canonicalize().map_err(|error| library(&error))?;
    let builder = ort::init_from(&path).map_err(|error| library(&error))?;
    // Only now: the options live inside the library.
    let pool = GlobalThreadPoolOptions::default()
        .with_intra_threads(threads)
        .and_then(|pool| pool.with_inter_threads(1))
        .and_then(|pool| pool.with_spin_control(false));
    builder
        .with_name("dichroic")
        .with_telemetry(false)
        .with_logger(Arc::new(|_level, _category, _id, _location, message: &str| {
            // Model warnings are for whoever debugs a model; node names never hold user text.
            tracing::debug!(target: "onnxruntime", "{message}");
        }))
        .with_global_thread_pool(pool.map_err(|error| library(&error))?)
        .build()
        .map_err(|error| library(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_left_over_where_workers_share_them() {
        for (threads, expected) in [(1, [1, 1]), (2, [1, 1]), (3, [2, 1]), (5, [3, 2]), (8, [4, 4])] {
            assert_eq!([share(threads, 2, 0), share(threads, 2, 1)], expected, "{threads}");
        }
        assert_eq!(share(7, 1, 0), 7);
    }
}
