//! Compiles kernels with NVRTC on first use, and caches the code in a folder by the hash of its source.

use crate::engine::library;
use crate::engine::program::Program;
use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use device::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int};
use std::hash::Hasher;
use std::path::PathBuf;

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) code: Vec<u8>,
    /// The mangled name of the kernel in the code.
    pub(super) name: CString,
}

/// The code of some functions of one source text, compiled together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The PTX code, followed by a 0 byte.
    pub ptx: Vec<u8>,
    /// Machine code of a real architecture such as `sm_90`; empty for a virtual one such as `compute_90`.
    pub cubin: Vec<u8>,
    /// The mangled name of each function.
    pub names: Vec<CString>,
}

/// Compiles some functions of one source text together. `options` are further options of NVRTC.
///
/// # Errors
/// `Unavailable` without the compiler; `Internal` with the compiler's message.
pub fn compile(
    file: &str,
    source: &str,
    functions: &[&str],
    architecture: &str,
    options: &[&str],
) -> Result<Compiled> {
    library::COMPILER.check()?;
    let text = |s: &str| CString::new(s).map_err(|_| Error::internal(format!("{file} holds a zero")));
    let (source, name) = (text(source)?, text(file)?);
    let expressions = functions.iter().map(|f| text(f)).collect::<Result<Vec<CString>>>()?;
    let compiling = Compiling::new(&source, &name)
        .map_err(|error| Error::internal(format!("{file} cannot be compiled: {error}")))?;
    let failed = |error: NvrtcError| {
        Error::internal(format!("{file} does not compile for {architecture}: {error}\n{}", compiling.log()))
    };
    compiling.run(&expressions, architecture, options).map_err(failed)?;
    let ptx = compiling.ptx().map_err(failed)?;
    let cubin = compiling.cubin().map_err(failed)?;
    let names = expressions.iter().map(|e| compiling.name_of(e)).collect::<Result<_, _>>().map_err(failed)?;
    Ok(Compiled { ptx, cubin, names })
}

/// A program of NVRTC.
struct Compiling(sys::nvrtcProgram);

impl Compiling {
    fn new(source: &CStr, name: &CStr) -> Result<Compiling, NvrtcError> {
        result::create_program(source, Some(name)).map(Compiling)
    }

    fn run(&self, expressions: &[CString], architecture: &str, options: &[&str]) -> Result<(), NvrtcError> {
        for expression in expressions {
            // SAFETY: the program lives as long as this value; the text ends with 0 and is copied.
            unsafe { sys::nvrtcAddNameExpression(self.0, expression.as_ptr()) }.result()?;
        }
        // Multiplications and additions are not contracted to fma, so that they are rounded as on the CPU.
        let architecture = format!("--gpu-architecture={architecture}");
        let fixed = [architecture.as_str(), "--std=c++17", "--fmad=false"];
        let all: Vec<String> = fixed.iter().chain(options).map(ToString::to_string).collect();
        // SAFETY: the program lives as long as this value.
        unsafe { result::compile_program(self.0, &all) }
    }

    fn ptx(&self) -> Result<Vec<u8>, NvrtcError> {
        self.read(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        self.read(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
    }

    /// Returns a result of the compilation as bytes: `size` returns its length, and `get` copies it.
    fn read(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut len = 0;
        // SAFETY: the program was compiled, and the memory has the size that the compiler asks for.
        unsafe {
            size(self.0, &raw mut len).result()?;
            let mut code = vec![0; len];
            if len > 0 {
                get(self.0, code.as_mut_ptr().cast()).result()?;
            }
            Ok(code)
        }
    }

    /// Returns the mangled name of a function.
    fn name_of(&self, expression: &CString) -> Result<CString, NvrtcError> {
        let mut name = std::ptr::null();
        // SAFETY: the program was compiled with this expression; the name is copied while the program lives.
        unsafe {
            sys::nvrtcGetLoweredName(self.0, expression.as_ptr(), &raw mut name).result()?;
            Ok(CStr::from_ptr(name).to_owned())
        }
    }

    /// Returns the compiler's messages.
    fn log(&self) -> String {
        // SAFETY: the program lives as long as this value.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        // SAFETY: the program has no other users.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Returns the compiled kernel of a program: read from the cache folder, or compiled and written to that
/// folder.
pub(super) fn compile_cached(program: &Program, architecture: &str) -> Result<Image> {
    let source = program.source();
    let file = folder().map(|folder| {
        let mut hash = siphasher::sip128::SipHasher24::new();
        for part in [&*source, &program.function, architecture, &version()] {
            hash.write(part.as_bytes());
            hash.write_u8(0);
        }
        let hash = siphasher::sip128::Hasher128::finish128(&hash).as_u128();
        folder.join(format!("{hash:032x}.cubin"))
    });
    if let Some(kept) = file.as_ref().and_then(|file| std::fs::read(file).ok()).and_then(parse) {
        return Ok(kept);
    }
    let mut compiled = compile(program.file, &source, &[&program.function], architecture, &[])?;
    let name = compiled.names.pop().ok_or_else(|| Error::internal("a kernel has no name"))?;
    let image = Image { code: compiled.cubin, name };
    if let Some(file) = file {
        // Several processes may write the same entry, so each process writes a file of its own and renames it.
        // Errors are ignored, because without the entry the next process only has to compile the kernel again.
        let own = file.with_extension(format!("{}.part", std::process::id()));
        let bytes = [image.name.as_bytes_with_nul(), &image.code].concat();
        let _ = std::fs::write(&own, bytes).and_then(|()| std::fs::rename(&own, &file));
    }
    Ok(image)
}

/// Parses a cache entry: the kernel's mangled name, a 0 byte, and the machine code.
fn parse(mut bytes: Vec<u8>) -> Option<Image> {
    let end = bytes.iter().position(|&b| b == 0)?;
    let code = bytes.split_off(end + 1);
    bytes.pop();
    let is_whole = code.starts_with(b"\x7fELF");
    is_whole.then_some(Image { code, name: CString::new(bytes).ok()? })
}

/// Returns the cache folder: `ANABRANCH_CUDA_CACHE`, or a folder in the user's cache folder; `None` if neither
/// is set or the folder cannot be created.
fn folder() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = of("ANABRANCH_CUDA_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|cache| cache.join("anabranch/cuda")))
        .or_else(|| of("HOME").map(|home| home.join(".cache/anabranch/cuda")))?;
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder)
}

/// Returns the compiler's version, which is part of the cache key because another version may generate other
/// code.
fn version() -> String {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    if library::COMPILER.check().is_ok() {
        // SAFETY: the function writes two numbers.
        let _ = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    }
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_binaries_are_parsed_and_corrupt_ones_rejected() {
        let image = Image { code: b"\x7fELF\0more".to_vec(), name: c"_Z3fooIfE".to_owned() };
        let bytes = [image.name.as_bytes_with_nul(), &image.code].concat();
        assert_eq!(parse(bytes), Some(image));
        assert_eq!(parse(b"no zero".to_vec()), None);
        assert_eq!(parse(b"name\0no code".to_vec()), None);
        assert_eq!(parse(Vec::new()), None);
    }
}
