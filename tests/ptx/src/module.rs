//! A parsed PTX module.

use crate::function::Function;
use crate::parser::Parser;
use crate::text::ParseError;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The start address of a module's global variables, above all addresses of a launch's memory.
pub(crate) const GLOBALS: u64 = 1 << 62;

/// A parsed PTX text with its kernels.
#[derive(Debug, Default)]
pub struct Module {
    program: Arc<Program>,
    /// Indices of the kernels in the program's functions, by name.
    kernels: HashMap<String, usize>,
}

/// The functions and global variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) functions: Vec<Function>,
    /// The initial bytes of the module's global variables, at address [`GLOBALS`].
    pub(crate) data: Vec<u8>,
}

/// A kernel that can be launched.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) program: Arc<Program>,
    pub(crate) function: usize,
}

impl Module {
    /// Parses PTX text as the compiler writes it.
    ///
    /// # Errors
    /// The first construct that the parser does not support, with its line.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let (program, kernels) = Parser::new(text).module()?;
        Ok(Module { program: Arc::new(program), kernels })
    }

    /// Returns the kernel with this mangled name, if the module has it.
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
