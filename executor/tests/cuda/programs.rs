//! Every kernel of every `.cu` file compiles, for each architecture that there is code for, with the compiler that the
//! program will find: NVIDIA's own, which needs no GPU.

use super::{Fallible, environment, kernels};
use anabranch_executor::cuda::{Program, compile, library};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The oldest compiler of those that the bindings are for.
const COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";

/// Brings the compiler into the process, from where it is found by its name.
fn load_compiler() -> Fallible {
    let python = environment::made("nvrtc", &[COMPILER])?;
    let root = python.parent().and_then(Path::parent).ok_or("an interpreter in no folder")?.join("lib");
    let mut files = Vec::new();
    find(&root, &mut files)?;
    // What the compiler itself opens by name comes first.
    files.sort_by_key(|file| !file.to_string_lossy().contains("builtins"));
    if files.len() < 2 {
        return Err(format!("{COMPILER} has no libraries under {}", root.display()).into());
    }
    for file in files {
        // SAFETY: NVIDIA's compiler, whose initialisation is sound in any process.
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

fn check(architecture: &str, magic: &[u8]) -> Fallible {
    load_compiler()?;
    // Chains have texts of their own, all under one file's name.
    let mut texts: BTreeMap<(&str, String), Vec<Program>> = BTreeMap::new();
    for program in kernels::programs()? {
        texts.entry((program.file, program.source())).or_default().push(program);
    }
    for ((file, source), programs) in &texts {
        let functions: Vec<&str> = programs.iter().map(|program| &*program.function).collect();
        let (code, names) = compile(file, source, &functions, architecture)?;
        assert!(code.windows(magic.len()).any(|window| window == magic), "{file} for {architecture}");
        for (name, function) in names.iter().zip(&functions) {
            let is_there = code.windows(name.count_bytes()).any(|window| window == name.to_bytes());
            assert!(is_there, "{file}: {function} is not in the code");
        }
    }
    Ok(())
}

#[test]
fn all_compile_for_sm_80() -> Fallible {
    check("sm_80", b"\x7fELF")
}

#[test]
fn all_compile_for_sm_90() -> Fallible {
    check("sm_90", b"\x7fELF")
}

#[test]
fn all_compile_to_ptx() -> Fallible {
    check("compute_80", b".target sm_80")
}

#[test]
fn the_compiler_is_told_of_with_its_version() -> Fallible {
    load_compiler()?;
    let found = library::COMPILER.report().found?;
    assert!(found.starts_with("libnvrtc.so") && found.ends_with(" 13.0"), "{found}");
    Ok(())
}

#[test]
fn what_does_not_compile_is_an_error_that_says_why() -> Fallible {
    load_compiler()?;
    let error = compile("wrong.cu", "__global__ void f() { nonsense; }", &[], "sm_80").err();
    let message = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(message.starts_with("wrong.cu does not compile for sm_80"), "{message}");
    assert!(message.contains("nonsense"), "{message}");
    Ok(())
}
