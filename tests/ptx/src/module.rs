//! A parsed PTX module.

use crate::function::Function;
use crate::parser::Parser;
use crate::text::ParseError;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The address of a module's own data, beyond all memory of a launch.
pub(crate) const GLOBALS: u64 = 1 << 62;

/// A parsed text with its kernels.
#[derive(Debug, Default)]
pub struct Module {
    program: Arc<Program>,
    /// Indices of kernels by name.
    kernels: HashMap<String, usize>,
}

/// The functions and data of a module.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) functions: Vec<Function>,
    /// The module's data, at address [`GLOBALS`].
    pub(crate) data: Vec<u8>,
}

/// A kernel that can be launched.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) program: Arc<Program>,
    pub(crate) function: usize,
}

impl Module {
    /// Parses the compiler's output.
    ///
    /// # Errors
    /// The first construct that the parser does not support, with its line.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let (program, kernels) = Parser::new(text).module()?;
        Ok(Module { program: Arc::new(program), kernels })
    }

    /// Returns the kernel of this mangled name.
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        let &function = self.kernels.get(name)?;
        Some(Kernel { program: self.program.clone(), function })
    }
}

impl Kernel {
    pub(crate) fn function(&self) -> &Function {
        &self.program.functions[self.function]
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.function().name)
    }
}
