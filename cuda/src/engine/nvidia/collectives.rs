//! Collectives with NCCL. NCCL's functions are looked up here, because cudarc looks for the library under file
//! names that NCCL does not have.

use super::{Nvidia, library, stream_of};
use crate::engine::driver::{AllReduce, AllReducePart, Reduction};
use cudarc::driver::sys::CUstream;
use device::{Error, Result};
use graph::DType;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// NCCL's handle of one GPU in a clique, a set of GPUs that run collectives together (`ncclComm_t`).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Communicator(*mut c_void);

// SAFETY: NCCL lets any thread use a communicator, one thread at a time.
unsafe impl Send for Communicator {}

/// The status that a function of NCCL returns (`ncclResult_t`); 0 is success.
type Status = c_int;

/// The functions of NCCL that are called. The types are those of NCCL's header: `ncclComm_t`, `ncclDataType_t`,
/// `ncclRedOp_t` and `cudaStream_t`, which is the driver's stream.
#[derive(Clone, Copy, Debug)]
struct Functions {
    describe: unsafe extern "C" fn(Status) -> *const c_char,
    connect: unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> Status,
    abort: unsafe extern "C" fn(Communicator) -> Status,
    begin_group: unsafe extern "C" fn() -> Status,
    end_group: unsafe extern "C" fn() -> Status,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        CUstream,
    ) -> Status,
}

/// The functions of NCCL, and the communicators of each set of GPUs (clique) that has run a collective. The
/// communicators are kept until a collective of the clique fails.
#[derive(Debug)]
struct Nccl {
    functions: Functions,
    /// The communicators of each clique, in the order of the parts of an all-reduce. The key is the list of the
    /// GPUs' numbers in the same order.
    cliques: BTreeMap<Vec<c_int>, Vec<Communicator>>,
}

/// Enqueues the parts of an all-reduce. A lock orders collectives, because two GPUs that enqueue collectives in
/// different orders wait for each other forever.
pub(super) fn all_reduce(operation: &AllReduce, parts: &[AllReducePart<'_>]) -> Result<()> {
    let gpus: Vec<&Nvidia> = parts.iter().map(|part| Nvidia::of(part.driver)).collect::<Result<_>>()?;
    // Where the machine has peer access, NCCL reads tensors in the other GPU's memory, so access to the memory
    // pool must be enabled too.
    for (i, gpu) in gpus.iter().enumerate() {
        for other in &gpus[i + 1..] {
            gpu.peers.enable_peer_access(gpu, other)?;
        }
    }
    let numbers: Vec<c_int> = gpus.iter().map(|gpu| gpu.number as c_int).collect();
    let mut nccl = opened()?.lock();
    let clique = nccl.clique(&numbers)?;
    let enqueued = nccl.functions.enqueue(operation, parts, &clique);
    if enqueued.is_err() {
        // Some parts may already be enqueued, and would wait forever for the parts that are not.
        nccl.dissolve(&numbers);
    }
    enqueued
}

/// Returns NCCL, loaded on first use.
fn opened() -> Result<&'static Mutex<Nccl>> {
    static OPENED: OnceLock<Result<Mutex<Nccl>>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        library::COLLECTIVES.check()?;
        let functions = Functions::find()?;
        Ok(Mutex::new(Nccl { functions, cliques: BTreeMap::new() }))
    });
    opened.as_ref().map_err(Error::clone)
}

impl Nccl {
    /// Returns the communicators of the clique of these GPUs, created on first use.
    fn clique(&mut self, numbers: &[c_int]) -> Result<Vec<Communicator>> {
        if let Some(clique) = self.cliques.get(numbers) {
            return Ok(clique.clone());
        }
        let mut clique = vec![Communicator(std::ptr::null_mut()); numbers.len()];
        // SAFETY: NCCL writes as many communicators as there are numbers, each for a different GPU of the
        // process.
        let connected = unsafe {
            (self.functions.connect)(clique.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr())
        };
        self.functions.check("ncclCommInitAll", connected)?;
        self.cliques.insert(numbers.to_vec(), clique.clone());
        Ok(clique)
    }

    /// Aborts the collectives that a clique has enqueued. The clique is created anew on its next use.
    fn dissolve(&mut self, numbers: &[c_int]) {
        let Some(clique) = self.cliques.remove(numbers) else { return };
        // SAFETY: the communicators have no other users, because the clique has been removed.
        unsafe {
            let _ = (self.functions.begin_group)();
            for communicator in clique {
                let _ = (self.functions.abort)(communicator);
            }
            let _ = (self.functions.end_group)();
        }
    }
}

impl Functions {
    /// Looks up the functions of NCCL that are called.
    fn find() -> Result<Functions> {
        let (library, _) = library::COLLECTIVES.open()?;
        let missing = |error: libloading::Error| Error::internal(format!("libnccl: {error}"));
        // SAFETY: the types are those of NCCL's header, which are the same in all versions 2.
        let functions = unsafe {
            Functions {
                describe: *library.get(b"ncclGetErrorString\0").map_err(missing)?,
                connect: *library.get(b"ncclCommInitAll\0").map_err(missing)?,
                abort: *library.get(b"ncclCommAbort\0").map_err(missing)?,
                begin_group: *library.get(b"ncclGroupStart\0").map_err(missing)?,
                end_group: *library.get(b"ncclGroupEnd\0").map_err(missing)?,
                all_reduce: *library.get(b"ncclAllReduce\0").map_err(missing)?,
            }
        };
        // The library is never unloaded, so its functions stay valid until the process ends.
        std::mem::forget(library);
        Ok(functions)
    }

    /// Enqueues all parts in one NCCL group: nothing is enqueued before the group ends, and a group that has
    /// begun must end even after an error.
    fn enqueue(
        &self,
        operation: &AllReduce,
        parts: &[AllReducePart<'_>],
        clique: &[Communicator],
    ) -> Result<()> {
        let (dtype, reduction) = (type_number(operation.dtype)?, reduction_number(operation.reduction));
        // SAFETY: the memory and the stream of each part belong to the communicator's GPU, and live until the
        // stream has executed the part (the contract of `Driver`); each memory holds `count` elements of the
        // dtype.
        unsafe {
            self.check("ncclGroupStart", (self.begin_group)())?;
            let enqueued = parts.iter().zip(clique).try_for_each(|(part, &communicator)| {
                let (from, to) = (part.from.0 as *const c_void, part.to.0 as *mut c_void);
                let stream = stream_of(part.stream);
                let status =
                    (self.all_reduce)(from, to, operation.count, dtype, reduction, communicator, stream);
                self.check("ncclAllReduce", status)
            });
            let ended = self.check("ncclGroupEnd", (self.end_group)());
            enqueued.and(ended)
        }
    }

    fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a string that the library owns, for any number.
        let text = unsafe { (self.describe)(status) };
        let text = match text.is_null() {
            true => format!("error {status}").into(),
            // SAFETY: the string ends with 0 and is static.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        };
        Err(Error::internal(format!("{call} failed: {text}")))
    }
}

/// Returns NCCL's number for a dtype (`ncclDataType_t`).
pub(super) fn type_number(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::Int32 => 2,
        DType::Int64 => 4,
        DType::Half => 6,
        DType::Float => 7,
        DType::Double => 8,
        DType::BFloat16 => 9,
        other => return Err(Error::unimplemented(format!("no collective of elements of type {other}"))),
    })
}

/// Returns NCCL's number for a reduction (`ncclRedOp_t`).
pub(super) fn reduction_number(reduction: Reduction) -> c_int {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Maximum => 2,
        Reduction::Minimum => 3,
        Reduction::Mean => 4,
    }
}
