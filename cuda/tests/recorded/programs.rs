//! Compiles all kernels of all `.cu` files for each supported architecture with NVIDIA's compiler, which needs
//! no GPU.

use super::Fallible;
use super::software::compiler::{self, loaded, texts};
use super::software::gpu;
use cuda::engine::{Compiled, compile, library};

/// The compiler option for little optimisation, because the tests only check that the code compiles.
const LITTLE_OPTIMIZATION: &str = "--Ofast-compile=max";

/// Checks that each source text compiles for the architecture, to machine code that contains all requested
/// functions.
fn check(architecture: &str) -> Fallible {
    loaded()?;
    for ((file, source), functions) in &texts()? {
        let functions: Vec<&str> = functions.iter().map(|function| &**function).collect();
        let Compiled { cubin, names, .. } =
            compile(file, source, &functions, architecture, &[LITTLE_OPTIMIZATION])?;
        assert!(cubin.starts_with(b"\x7fELF"), "{file} for {architecture}");
        for (name, function) in names.iter().zip(&functions) {
            let is_there = cubin.windows(name.count_bytes()).any(|window| window == name.to_bytes());
            assert!(is_there, "{file}: {function} is not in the code");
        }
    }
    Ok(())
}

#[test]
fn all_sources_compile_for_sm_80() -> Fallible {
    check("sm_80")
}

#[test]
fn all_sources_compile_for_sm_90() -> Fallible {
    check("sm_90")
}

/// Compiles all kernels to PTX that the test's interpreter can execute.
#[test]
fn all_sources_compile_to_ptx() -> Fallible {
    for program in gpu::programs()? {
        compiler::kernel(&program).map_err(|error| format!("{}: {error}", program.function))?;
    }
    Ok(())
}

#[test]
fn compiler_report_has_the_version() -> Fallible {
    loaded()?;
    let found = library::COMPILER.report().found?;
    assert!(found.starts_with("libnvrtc.so") && found.ends_with(" 13.0"), "{found}");
    Ok(())
}

#[test]
fn compile_errors_include_the_log() -> Fallible {
    loaded()?;
    let error = compile("wrong.cu", "__global__ void f() { nonsense; }", &[], "sm_80", &[]).err();
    let message = error.map(|e| e.to_string()).unwrap_or_default();
    assert!(message.starts_with("wrong.cu does not compile for sm_80"), "{message}");
    assert!(message.contains("nonsense"), "{message}");
    Ok(())
}
