//! Every kernel of every `.cu` file compiles, for each architecture that there is code for, with the compiler that the
//! program will find: NVIDIA's own, which needs no GPU.

use super::compiler::{self, loaded, texts};
use super::{Fallible, kernels};
use anabranch_cuda::engine::{compile, library};

fn check(architecture: &str, magic: &[u8]) -> Fallible {
    loaded()?;
    for ((file, source), functions) in &texts()? {
        let functions: Vec<&str> = functions.iter().map(|function| &**function).collect();
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

/// And is known there, each instruction of it.
#[test]
fn all_compile_to_ptx() -> Fallible {
    for program in kernels::programs()? {
        compiler::kernel(&program).map_err(|error| format!("{}: {error}", program.function))?;
    }
    Ok(())
}

#[test]
fn the_compiler_is_told_of_with_its_version() -> Fallible {
    loaded()?;
    let found = library::COMPILER.report().found?;
    assert!(found.starts_with("libnvrtc.so") && found.ends_with(" 13.0"), "{found}");
    Ok(())
}

#[test]
fn what_does_not_compile_is_an_error_that_says_why() -> Fallible {
    loaded()?;
    let error = compile("wrong.cu", "__global__ void f() { nonsense; }", &[], "sm_80").err();
    let message = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(message.starts_with("wrong.cu does not compile for sm_80"), "{message}");
    assert!(message.contains("nonsense"), "{message}");
    Ok(())
}
