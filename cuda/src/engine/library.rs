//! NVIDIA's libraries: which of them this machine has, of which versions, and why one is missing. cudarc panics over a
//! library or a symbol that is missing, so nothing calls it before [`Library::check`] has said that all is there.

use device::gpu_options::LibraryReport;
use device::{Error, Result};
use graph::Code;
use std::ffi::c_int;

/// A library that is looked for by name when it is first needed.
#[derive(Debug)]
pub struct Library {
    /// `cuda`, `nvrtc`: what stands between `lib` and `.so`.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Where it lies by the names that its maker uses, where cudarc's are others.
    file: Option<&'static str>,
    /// What is called in it.
    symbols: &'static [&'static str],
    version: fn(&libloading::Library) -> Option<String>,
}

/// What was found of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub file: String,
    /// `None` if the library does not tell.
    pub version: Option<String>,
}

pub static DRIVER: Library = Library {
    name: "cuda",
    purpose: "the driver: without it there is no GPU",
    file: None,
    symbols: &[
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGet",
        "cuDeviceGetCount",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetPCIBusId",
        "cuDeviceGetDefaultMemPool",
        "cuDeviceCanAccessPeer",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxSetCurrent",
        "cuCtxEnablePeerAccess",
        "cuMemGetInfo_v2",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuMemHostRegister_v2",
        "cuMemHostUnregister",
        "cuMemGetAllocationGranularity",
        "cuMemCreate",
        "cuMemRelease",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemAddressFree",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo",
        "cuMemPoolSetAccess",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyPeerAsync",
        "cuMemsetD8Async",
        "cuStreamCreate",
        "cuStreamDestroy_v2",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuEventDestroy_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuModuleUnload",
        "cuLaunchKernel",
        "cuGetErrorName",
        "cuGetErrorString",
    ],
    version: |library| {
        // 13000 is 13.0.
        number(library, b"cuDriverGetVersion\0").map(|v| format!("{}.{}", v / 1000, v % 1000 / 10))
    },
};

pub static COMPILER: Library = Library {
    name: "nvrtc",
    purpose: "compiles kernels when they are first used",
    file: None,
    symbols: &[
        "nvrtcVersion",
        "nvrtcCreateProgram",
        "nvrtcDestroyProgram",
        "nvrtcAddNameExpression",
        "nvrtcCompileProgram",
        "nvrtcGetLoweredName",
        "nvrtcGetProgramLogSize",
        "nvrtcGetProgramLog",
        "nvrtcGetCUBINSize",
        "nvrtcGetCUBIN",
        "nvrtcGetPTXSize",
        "nvrtcGetPTX",
    ],
    version: |library| {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the signature is that of nvrtcVersion, which writes two numbers.
        let status = unsafe {
            let version: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                library.get(b"nvrtcVersion\0").ok()?;
            version(&raw mut major, &raw mut minor)
        };
        (status == 0).then(|| format!("{major}.{minor}"))
    },
};

pub static BLAS: Library = Library {
    name: "cublas",
    purpose: "products of matrices",
    file: None,
    symbols: &[
        "cublasCreate_v2",
        "cublasDestroy_v2",
        "cublasSetStream_v2",
        "cublasSetWorkspace_v2",
        "cublasGemmStridedBatchedEx",
    ],
    version: |library| {
        let part = |which: c_int| {
            let mut value = 0;
            // SAFETY: the signature is that of cublasGetProperty, which writes one number.
            let status = unsafe {
                let get: libloading::Symbol<'_, unsafe extern "C" fn(c_int, *mut c_int) -> c_int> =
                    library.get(b"cublasGetProperty\0").ok()?;
                get(which, &raw mut value)
            };
            (status == 0).then_some(value)
        };
        Some(format!("{}.{}.{}", part(0)?, part(1)?, part(2)?))
    },
};

pub static LIGHT_BLAS: Library = Library {
    name: "cublasLt",
    purpose: "products with a bias and an activation in one: without it they are kernels of their own",
    file: None,
    symbols: &[
        "cublasLtCreate",
        "cublasLtDestroy",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescDestroy",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutDestroy",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ],
    version: |library| whole(library, b"cublasLtGetVersion\0"),
};

pub static DNN: Library = Library {
    name: "cudnn",
    purpose: "convolution",
    file: None,
    symbols: &[
        "cudnnCreate",
        "cudnnDestroy",
        "cudnnSetStream",
        "cudnnCreateTensorDescriptor",
        "cudnnDestroyTensorDescriptor",
        "cudnnSetTensorNdDescriptor",
        "cudnnCreateFilterDescriptor",
        "cudnnDestroyFilterDescriptor",
        "cudnnSetFilter4dDescriptor",
        "cudnnCreateConvolutionDescriptor",
        "cudnnDestroyConvolutionDescriptor",
        "cudnnSetConvolution2dDescriptor",
        "cudnnSetConvolutionGroupCount",
        "cudnnSetConvolutionMathType",
        "cudnnGetConvolutionForwardAlgorithm_v7",
        "cudnnGetConvolutionBackwardDataAlgorithm_v7",
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        "cudnnConvolutionForward",
        "cudnnConvolutionBackwardData",
        "cudnnConvolutionBackwardFilter",
    ],
    version: |library| whole(library, b"cudnnGetVersion\0"),
};

pub static COLLECTIVES: Library = Library {
    name: "nccl",
    purpose: "sums over several GPUs",
    file: Some("libnccl.so.2"),
    symbols: &[
        "ncclGetVersion",
        "ncclGetErrorString",
        "ncclCommInitAll",
        "ncclCommAbort",
        "ncclGroupStart",
        "ncclGroupEnd",
        "ncclAllReduce",
    ],
    version: |library| number(library, b"ncclGetVersion\0").map(|v| parts(v as usize)),
};

pub static ALL: [&Library; 6] = [&DRIVER, &COMPILER, &BLAS, &LIGHT_BLAS, &DNN, &COLLECTIVES];

impl Library {
    /// Looks for the library. It stays loaded: whoever uses it next finds it in memory.
    ///
    /// # Errors
    /// `Unavailable`: it is not there, or lacks something that is called in it.
    pub fn find(&self) -> Result<Found> {
        let (library, found) = self.open()?;
        // Unloading would run the library's exit code under whoever has it.
        std::mem::forget(library);
        Ok(found)
    }

    /// As [`Library::find`], for who calls it without cudarc.
    ///
    /// # Errors
    /// As [`Library::find`].
    pub(super) fn open(&self) -> Result<(libloading::Library, Found)> {
        let candidates = cudarc::get_lib_name_candidates(self.name);
        let mut why = None;
        for file in self.file.map(str::to_owned).into_iter().chain(candidates) {
            // SAFETY: a library of NVIDIA's, whose initialisation is sound in any process.
            let library = match unsafe { libloading::Library::new(&file) } {
                Ok(library) => library,
                Err(error) => {
                    // What the loader says of a file that is there and cannot be used says more than that others
                    // are not there.
                    let text = describe(&error);
                    let is_telling = !text.contains("No such file");
                    if why.is_none() || is_telling {
                        why = Some((file, text));
                    }
                    continue;
                }
            };
            let version = (self.version)(&library);
            // SAFETY: only whether the symbol is there matters; nothing is called.
            let is_missing = |symbol: &&&str| unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err();
            let missing: Vec<&str> = self.symbols.iter().filter(is_missing).copied().collect();
            if !missing.is_empty() {
                let missing = missing.join(", ");
                std::mem::forget(library);
                let version = version.map_or(String::new(), |v| format!(" ({v})"));
                return Err(unavailable(format!("{file}{version} has no {missing}")));
            }
            return Ok((library, Found { file, version }));
        }
        let text = why.map_or_else(String::new, |(_, text)| text);
        Err(unavailable(format!("no lib{}.so: {text}", self.name)))
    }

    /// What is found, in words.
    pub fn report(&self) -> LibraryReport {
        let found = self.find().map_err(|error| error.to_string());
        let found = found.map(|Found { file, version }| match version {
            Some(version) => format!("{file} {version}"),
            None => file,
        });
        LibraryReport { name: format!("lib{}", self.name), purpose: self.purpose, found }
    }

    /// That calls into the library find it.
    ///
    /// # Errors
    /// As [`Library::find`], with the library's purpose.
    pub fn check(&self) -> Result<()> {
        self.find().map(|_| ()).map_err(|error| unavailable(format!("{error} ({})", self.purpose)))
    }
}

fn unavailable(message: String) -> Error {
    Error::new(Code::Unavailable, message)
}

/// What the loader said, without the name of the call.
fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// What `fn(*mut int) -> status` says.
fn number(library: &libloading::Library, symbol: &[u8]) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: every caller names a function of this signature, which writes one number.
    let status = unsafe {
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            library.get(symbol).ok()?;
        get(&raw mut value)
    };
    (status == 0).then_some(value)
}

/// What `fn() -> size_t` says, in parts.
fn whole(library: &libloading::Library, symbol: &[u8]) -> Option<String> {
    // SAFETY: every caller names a function of this signature.
    let value = unsafe {
        let get: libloading::Symbol<'_, unsafe extern "C" fn() -> usize> = library.get(symbol).ok()?;
        get()
    };
    Some(parts(value))
}

/// 91002 is 9.10.2.
fn parts(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_names_it() {
        let none = Library {
            name: "no-such-library-of-anybodys",
            purpose: "nothing",
            file: None,
            symbols: &[],
            version: |_| None,
        };
        let error = none.check().err().map(|e| (e.code(), e.to_string()));
        let Some((Code::Unavailable, message)) = error else { panic!("{error:?}") };
        assert!(message.starts_with("no libno-such-library-of-anybodys.so: "), "{message}");
        assert!(message.ends_with("(nothing)"), "{message}");
    }

    #[test]
    fn a_library_that_lacks_a_symbol_is_an_error_that_names_both() {
        let c = Library {
            name: "c",
            purpose: "nothing",
            file: Some("libc.so.6"),
            symbols: &["malloc", "no_such_symbol"],
            version: |_| Some("2".to_owned()),
        };
        let message = c.find().err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(message, "libc.so.6 (2) has no no_such_symbol");
        let c = Library { symbols: &["malloc"], ..c };
        assert_eq!(
            c.find().ok(),
            Some(Found { file: "libc.so.6".to_owned(), version: Some("2".to_owned()) })
        );
    }

    #[test]
    fn versions_are_read_as_their_libraries_write_them() {
        assert_eq!(parts(91002), "9.10.2");
        assert_eq!(parts(22803), "2.28.3");
    }
}
