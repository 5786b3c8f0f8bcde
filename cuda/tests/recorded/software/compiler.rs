//! Compiles the GPU kernels to PTX with NVIDIA's compiler, which needs no GPU.

use super::super::{Fallible, environment};
use super::gpu::programs;
use cuda::engine::{Compiled, Program, compile, library};
use device::{Error, Result};
use ptx::{Kernel, Module};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The oldest compiler version that the bindings support.
const COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";

/// Loads the compiler into the process, so that a later lookup by name finds it.
pub(crate) fn loaded() -> Fallible {
    let python = environment::ensure_environment("nvrtc", &[COMPILER])?;
    let root = python.parent().and_then(Path::parent).ok_or("an interpreter in no folder")?.join("lib");
    let mut files = Vec::new();
    find(&root, &mut files)?;
    // The `builtins` library is loaded first, because the compiler opens it by name.
    files.sort_by_key(|file| !file.to_string_lossy().contains("builtins"));
    if files.len() < 2 {
        return Err(format!("{COMPILER} has no libraries under {}", root.display()).into());
    }
    for file in files {
        // SAFETY: this is NVIDIA's compiler, whose initialisation is sound in any process.
        std::mem::forget(unsafe { libloading::Library::new(&file) }?);
    }
    library::COMPILER.check()?;
    Ok(())
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Fallible {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            find(&path, found)?;
        } else if name.starts_with("libnvrtc") && !name.contains(".alt.") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the functions of all kernels in the kernel table, by file name and text. All fused chains have one
/// file name, but each chain has a text of its own.
pub(crate) fn texts() -> Fallible<BTreeMap<(&'static str, String), Vec<String>>> {
    let mut texts = BTreeMap::<_, Vec<String>>::new();
    for program in programs()? {
        texts.entry((program.file, program.source())).or_default().push(program.function);
    }
    Ok(texts)
}

/// Returns the kernel of a program as PTX. All functions of a file are compiled together, once.
pub(crate) fn kernel(program: &Program) -> Result<Kernel> {
    static COMPILED: Mutex<Option<HashMap<(String, String), Kernel>>> = Mutex::new(None);
    static TEXTS: OnceLock<BTreeMap<(&str, String), Vec<String>>> = OnceLock::new();
    let broken = |error: Box<dyn std::error::Error>| Error::internal(error.to_string());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_default();
    let source = program.source();
    if let Some(kernel) = compiled.get(&(source.clone(), program.function.clone())) {
        return Ok(kernel.clone());
    }
    loaded().map_err(broken)?;
    if TEXTS.get().is_none() {
        let _ = TEXTS.set(texts().map_err(broken)?);
    }
    let of_file = TEXTS.get().and_then(|texts| texts.get(&(program.file, source.clone())));
    let mut functions: Vec<&str> = of_file.into_iter().flatten().map(|function| &**function).collect();
    if !functions.contains(&&*program.function) {
        functions = vec![&program.function];
    }
    let Compiled { ptx, names, .. } = compile(program.file, &source, &functions, "compute_80", &[])?;
    let module = Module::parse(&String::from_utf8_lossy(&ptx))
        .map_err(|wrong| Error::internal(format!("{}: {wrong}", program.file)))?;
    for (function, name) in functions.iter().zip(&names) {
        let kernel = module.kernel(&name.to_string_lossy());
        let kernel = kernel.ok_or_else(|| Error::internal(format!("{function} is not in the code")))?;
        compiled.insert((source.clone(), (*function).to_owned()), kernel);
    }
    let kernel = compiled.get(&(source, program.function.clone())).cloned();
    kernel.ok_or_else(|| Error::internal(format!("{} is not in the code", program.function)))
}
