//! Kernels as source code: a function template and its template arguments; the template is in a `.cu` file or
//! in a text generated for one node.

use super::driver::FunctionId;
use device::Result;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;

/// A `.cu` file. The text of `prelude.cu` is put before the text of the file when it is compiled.
#[derive(Debug)]
pub struct Source {
    /// Name of the file, for error messages.
    pub file: &'static str,
    /// The file's content.
    pub text: &'static str,
}

/// One kernel: a source text, and a function template of it with template arguments, in C++ syntax.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Name of the file, for error messages.
    pub file: &'static str,
    /// The source text without the prelude.
    pub text: Cow<'static, str>,
    /// The instantiated function template, such as `map<Exp, float, float>`.
    pub function: String,
}

impl Source {
    /// Returns the program of one instantiated function of this file.
    pub fn program(&self, function: String) -> Program {
        Program { file: self.file, text: self.text.into(), function }
    }
}

impl Program {
    /// Returns the text to compile: the prelude, followed by the program's source text.
    pub fn source(&self) -> String {
        [include_str!("../kernels/prelude.cu"), &self.text].concat()
    }
}

/// A kernel that is loaded into a GPU's memory.
#[derive(Debug)]
pub struct Function {
    pub(super) id: FunctionId,
}

/// The loaded kernels of one GPU, by program.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<FxHashMap<Program, Arc<Function>>>);

impl Programs {
    /// Returns the kernel of a program, loaded on first use.
    pub(super) fn function(
        &self,
        program: Program,
        load: impl FnOnce(&Program) -> Result<FunctionId>,
    ) -> Result<Arc<Function>> {
        // The lock is held while a kernel compiles, so that concurrent callers wait for the result.
        let mut loaded = self.0.lock();
        if let Some(function) = loaded.get(&program) {
            return Ok(function.clone());
        }
        let function = Arc::new(Function { id: load(&program)? });
        loaded.insert(program, function.clone());
        Ok(function)
    }
}
