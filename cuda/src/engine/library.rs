//! NVIDIA's libraries: looks up each library on this machine, its version, and the reason if it is missing.
//! cudarc panics if a library or symbol is missing, so [`Library::check`] must succeed before any call into it.

use device::gpu_options::LibraryReport;
use device::{Error, Result};
use graph::Code;
use std::ffi::c_int;

/// A shared library that is looked up by name on first use.
#[derive(Debug)]
pub struct Library {
    /// The file name between `lib` and `.so`, such as `cuda` or `nvrtc`.
    pub name: &'static str,
    /// The purpose of the library in words, for reports and error messages.
    pub purpose: &'static str,
    /// The exact file name, for a library that cudarc does not find by `name`; `None` for other libraries.
    file: Option<&'static str>,
    /// The functions that are called in the library.
    symbols: &'static [&'static str],
    /// A function that asks the loaded library for its version.
    version: fn(&libloading::Library) -> Option<String>,
}

/// The file and the version of a library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    pub file: String,
    /// The library's version; `None` if the library does not report it.
    pub version: Option<String>,
}

/// The CUDA driver.
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
        // The driver reports version 13.0 as 13000.
        int_version(library, b"cuDriverGetVersion\0").map(|v| format!("{}.{}", v / 1000, v % 1000 / 10))
    },
};

/// NVRTC, the compiler of CUDA C++.
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

/// cuBLAS, for matrix products.
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

/// cuBLASLt, for matrix products with an epilogue.
pub static BLAS_LT: Library = Library {
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
    version: |library| size_version(library, b"cublasLtGetVersion\0"),
};

/// cuDNN, for convolutions.
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
    version: |library| size_version(library, b"cudnnGetVersion\0"),
};

/// NCCL, for collectives.
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
    version: |library| int_version(library, b"ncclGetVersion\0").map(|v| format_version(v as usize)),
};

/// All NVIDIA libraries that the crate uses.
pub static ALL: [&Library; 6] = [&DRIVER, &COMPILER, &BLAS, &BLAS_LT, &DNN, &COLLECTIVES];

impl Library {
    /// Looks up the library. It stays loaded, so later lookups find it in memory.
    ///
    /// # Errors
    /// `Unavailable` if the library is missing, or lacks a function that is called in it.
    pub fn find(&self) -> Result<FoundLibrary> {
        let (library, found) = self.open()?;
        // The library is never unloaded: unloading would run its exit code while other code still uses the
        // library.
        std::mem::forget(library);
        Ok(found)
    }

    /// Like [`Library::find`], for code that calls the library without cudarc.
    ///
    /// # Errors
    /// The errors of [`Library::find`].
    pub(super) fn open(&self) -> Result<(libloading::Library, FoundLibrary)> {
        let candidates = cudarc::get_lib_name_candidates(self.name);
        let mut why = None;
        for file in self.file.map(str::to_owned).into_iter().chain(candidates) {
            // SAFETY: this is a library of NVIDIA's, whose initialisation is sound in any process.
            let library = match unsafe { libloading::Library::new(&file) } {
                Ok(library) => library,
                Err(error) => {
                    // The error for a file that exists but cannot be loaded is reported in preference to "No
                    // such file" for another candidate file.
                    let text = describe(&error);
                    let is_specific = !text.contains("No such file");
                    if why.is_none() || is_specific {
                        why = Some((file, text));
                    }
                    continue;
                }
            };
            let version = (self.version)(&library);
            // SAFETY: the symbol is only looked up, not called.
            let is_missing = |symbol: &&&str| unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err();
            let missing: Vec<&str> = self.symbols.iter().filter(is_missing).copied().collect();
            if !missing.is_empty() {
                let missing = missing.join(", ");
                std::mem::forget(library);
                let version = version.map_or(String::new(), |v| format!(" ({v})"));
                return Err(unavailable(format!("{file}{version} has no {missing}")));
            }
            return Ok((library, FoundLibrary { file, version }));
        }
        let text = why.map_or_else(String::new, |(_, text)| text);
        Err(unavailable(format!("no lib{}.so: {text}", self.name)))
    }

    /// Returns a report of the library with its file and version, or the reason why it is missing.
    pub fn report(&self) -> LibraryReport {
        let found = self.find().map_err(|error| error.to_string());
        let found = found.map(|FoundLibrary { file, version }| match version {
            Some(version) => format!("{file} {version}"),
            None => file,
        });
        LibraryReport { name: format!("lib{}", self.name), purpose: self.purpose, found }
    }

    /// Checks that the library and all its functions can be called.
    ///
    /// # Errors
    /// The errors of [`Library::find`], with the library's purpose.
    pub fn check(&self) -> Result<()> {
        self.find().map(|_| ()).map_err(|error| unavailable(format!("{error} ({})", self.purpose)))
    }
}

fn unavailable(message: String) -> Error {
    Error::new(Code::Unavailable, message)
}

/// Returns the loader's message, without the name of the failed call.
fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Calls a function `fn(*mut int) -> status` and returns the number that it writes.
fn int_version(library: &libloading::Library, symbol: &[u8]) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: every caller names a function of this signature, which writes one number.
    let status = unsafe {
        let get: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> =
            library.get(symbol).ok()?;
        get(&raw mut value)
    };
    (status == 0).then_some(value)
}

/// Calls a function `fn() -> size_t` that returns a version, and formats it.
fn size_version(library: &libloading::Library, symbol: &[u8]) -> Option<String> {
    // SAFETY: every caller names a function of this signature.
    let value = unsafe {
        let get: libloading::Symbol<'_, unsafe extern "C" fn() -> usize> = library.get(symbol).ok()?;
        get()
    };
    Some(format_version(value))
}

/// Formats a version number as major, minor and patch: 91002 is 9.10.2.
fn format_version(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_an_error_with_its_name() {
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
    fn missing_symbol_is_an_error_with_library_and_symbol() {
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
            Some(FoundLibrary { file: "libc.so.6".to_owned(), version: Some("2".to_owned()) })
        );
    }

    #[test]
    fn version_numbers_are_formatted() {
        assert_eq!(format_version(91002), "9.10.2");
        assert_eq!(format_version(22803), "2.28.3");
    }
}
