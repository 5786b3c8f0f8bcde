//! Communicators of NCCL whose members may be in several processes. All calls are non-blocking: they continue in NCCL's
//! threads, and `ncclCommGetAsyncError` returns their progress.

use super::collectives::{reduction_number, type_number};
use super::{library, stream_of};
use crate::engine::driver::{Address, AllReduce, CallProgress, CommunicatorId, StreamId};
use cudarc::driver::sys::CUstream;
use device::device_collectives::CommunicatorPlace;
use device::{Error, Result};
use graph::Code;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The first version of NCCL whose non-blocking communicators are used: 2.18.
const MIN_VERSION: c_int = 21_800;

/// The size in bytes of a communicator's key (`NCCL_UNIQUE_ID_BYTES`).
const KEY_BYTES: usize = 128;

/// NCCL's form of a communicator's key (`ncclUniqueId`), which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([c_char; KEY_BYTES]);

/// The configuration of a communicator: `ncclConfig_t` of version 2.18. Later versions have more fields at the end, and
/// read only as many bytes as `size` says.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// The number that marks a valid configuration (`NCCL_API_MAGIC`).
const MAGIC: c_uint = 0xcafe_beef;

/// The value of a configuration field that requests the library's default (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;

/// NCCL's handle of one GPU's side of a communicator (`ncclComm_t`).
type Handle = *mut c_void;

/// The status that a function of NCCL returns (`ncclResult_t`).
type Status = c_int;

const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;

/// The functions of NCCL that are called, with the types of NCCL's header.
#[derive(Clone, Copy)]
struct Functions {
    describe: unsafe extern "C" fn(Status) -> *const c_char,
    create_key: unsafe extern "C" fn(*mut UniqueId) -> Status,
    connect: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Status,
    async_error: unsafe extern "C" fn(Handle, *mut Status) -> Status,
    abort: unsafe extern "C" fn(Handle) -> Status,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, CUstream) -> Status,
}

/// Checks that NCCL is installed and new enough.
///
/// # Errors
/// `Unavailable` with the reason.
pub(super) fn check() -> Result<()> {
    functions().map(|_| ())
}

/// Returns the name of a GPU with a PCI bus id: NCCL itself tells GPUs apart by the machine and this id.
///
/// # Errors
/// `Unavailable` if the machine's boot id cannot be read.
pub(super) fn identity(bus: &str) -> Result<String> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id =
        boot_id.map_err(|e| Error::new(Code::Unavailable, format!("this machine has no boot id: {e}")))?;
    Ok(format!("{}/{bus}", boot_id.trim()))
}

pub(super) fn create_key() -> Result<Vec<u8>> {
    let functions = functions()?;
    let mut key = UniqueId([0; KEY_BYTES]);
    // SAFETY: NCCL writes one id.
    functions.check("ncclGetUniqueId", unsafe { (functions.create_key)(&raw mut key) })?;
    Ok(key.0.iter().map(|&byte| byte as u8).collect())
}

/// Begins to create a communicator for the GPU whose context is current.
pub(super) fn connect(place: &CommunicatorPlace) -> Result<CommunicatorId> {
    let functions = functions()?;
    let key: [u8; KEY_BYTES] = place.key.as_slice().try_into().map_err(|_| {
        Error::invalid(format!("a key of NCCL has {KEY_BYTES} bytes, this one {}", place.key.len()))
    })?;
    let number =
        |value: usize| c_int::try_from(value).map_err(|_| Error::invalid("too many members for NCCL"));
    let (size, rank) = (number(place.size)?, number(place.rank)?);
    let mut config = Config {
        size: size_of::<Config>(),
        magic: MAGIC,
        version: MIN_VERSION as c_uint,
        blocking: 0,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
    };
    let mut handle: Handle = std::ptr::null_mut();
    let key = UniqueId(key.map(|byte| byte as c_char));
    // SAFETY: NCCL writes one handle, and copies the configuration before it returns.
    let status = unsafe { (functions.connect)(&raw mut handle, size, key, rank, &raw mut config) };
    let begun = functions.check("ncclCommInitRankConfig", status);
    match begun {
        Ok(()) if handle.is_null() => Err(Error::internal("ncclCommInitRankConfig returned no communicator")),
        Ok(()) => Ok(CommunicatorId(handle as u64)),
        Err(error) => {
            if !handle.is_null() {
                abort(CommunicatorId(handle as u64));
            }
            Err(error)
        }
    }
}

pub(super) fn progress(communicator: CommunicatorId) -> Result<CallProgress> {
    let functions = functions()?;
    let mut last = SUCCESS;
    // SAFETY: the caller has not aborted the communicator (the contract of `Driver`); NCCL writes one number.
    let status = unsafe { (functions.async_error)(handle_of(communicator), &raw mut last) };
    functions.check("ncclCommGetAsyncError", status)?;
    functions.check("a call of NCCL in the background", last)?;
    Ok(if last == IN_PROGRESS { CallProgress::Pending } else { CallProgress::Done })
}

pub(super) fn all_reduce(
    communicator: CommunicatorId,
    operation: &AllReduce,
    [from, to]: [Address; 2],
    stream: StreamId,
) -> Result<()> {
    let functions = functions()?;
    let (dtype, reduction) = (type_number(operation.dtype)?, reduction_number(operation.reduction));
    let (from, to) = (from.0 as *const c_void, to.0 as *mut c_void);
    // SAFETY: the memory and the stream belong to the communicator's GPU, and live until the stream has executed the
    // reduction (the contract of `Driver`); each memory holds `count` elements of the dtype.
    let status = unsafe {
        let (handle, stream) = (handle_of(communicator), stream_of(stream));
        (functions.all_reduce)(from, to, operation.count, dtype, reduction, handle, stream)
    };
    functions.check("ncclAllReduce", status)
}

pub(super) fn abort(communicator: CommunicatorId) {
    if let Ok(functions) = functions() {
        // SAFETY: no other call uses the communicator, now or later (the contract of `Driver`). An error is ignored,
        // because the communicator is not used again.
        let _ = unsafe { (functions.abort)(handle_of(communicator)) };
    }
}

fn handle_of(communicator: CommunicatorId) -> Handle {
    communicator.0 as Handle
}

/// Returns NCCL's functions, looked up on first use.
fn functions() -> Result<&'static Functions> {
    static FOUND: OnceLock<Result<Functions>> = OnceLock::new();
    FOUND.get_or_init(Functions::find).as_ref().map_err(Error::clone)
}

impl Functions {
    fn find() -> Result<Functions> {
        let (library, _) = library::COLLECTIVES.open()?;
        let missing = |error: libloading::Error| {
            Error::new(Code::Unavailable, format!("libnccl lacks a function of version 2.18: {error}"))
        };
        let mut version = 0;
        // SAFETY: the types are those of NCCL's header, which are the same in all versions from 2.18 on;
        // `ncclGetVersion` writes one number.
        let functions = unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> Status =
                *library.get(b"ncclGetVersion\0").map_err(missing)?;
            get(&raw mut version);
            Functions {
                describe: *library.get(b"ncclGetErrorString\0").map_err(missing)?,
                create_key: *library.get(b"ncclGetUniqueId\0").map_err(missing)?,
                connect: *library.get(b"ncclCommInitRankConfig\0").map_err(missing)?,
                async_error: *library.get(b"ncclCommGetAsyncError\0").map_err(missing)?,
                abort: *library.get(b"ncclCommAbort\0").map_err(missing)?,
                all_reduce: *library.get(b"ncclAllReduce\0").map_err(missing)?,
            }
        };
        // The library is never unloaded, so its functions stay valid until the process ends.
        std::mem::forget(library);
        if version < MIN_VERSION {
            let text =
                format!("libnccl has version {version}; communicators across processes need {MIN_VERSION}");
            return Err(Error::new(Code::Unavailable, text));
        }
        Ok(functions)
    }

    /// Returns the error of a call; a call that goes on in the background has none yet.
    fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS {
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
