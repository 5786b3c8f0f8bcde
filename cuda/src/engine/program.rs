//! Kernels as source: which function of which `.cu` file, or of a text that was made for one node, for which types.

use super::driver::FunctionId;
use device::Result;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::Arc;

/// A `.cu` file. What all files share stands before each.
#[derive(Debug)]
pub struct Source {
    /// The file's name, for messages.
    pub file: &'static str,
    pub text: &'static str,
}

/// One kernel of a file: a template with its types, as C++ writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    pub file: &'static str,
    pub text: Cow<'static, str>,
    /// `unary<Exp, float>`.
    pub function: String,
}

impl Source {
    pub fn program(&self, function: String) -> Program {
        Program { file: self.file, text: self.text.into(), function }
    }
}

impl Program {
    /// What the compiler is given.
    pub fn source(&self) -> String {
        [include_str!("../kernels/prelude.cu"), &self.text].concat()
    }
}

/// A kernel that can be launched.
#[derive(Debug)]
pub struct Function {
    pub(super) id: FunctionId,
}

/// The kernels of one GPU, each loaded once.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<FxHashMap<Program, Arc<Function>>>);

impl Programs {
    pub(super) fn function(
        &self,
        program: Program,
        load: impl FnOnce(&Program) -> Result<FunctionId>,
    ) -> Result<Arc<Function>> {
        // Who asks for a kernel that another thread compiles waits for it.
        let mut loaded = self.0.lock();
        if let Some(function) = loaded.get(&program) {
            return Ok(function.clone());
        }
        let function = Arc::new(Function { id: load(&program)? });
        loaded.insert(program, function.clone());
        Ok(function)
    }
}
