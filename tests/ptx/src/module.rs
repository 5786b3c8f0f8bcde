//! A text that was read.

use crate::function::Function;
use crate::parser::Parser;
use crate::text::Wrong;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Where a module's own data is: above all memory that it is lent.
pub(crate) const GLOBALS: u64 = 1 << 62;

#[derive(Debug, Default)]
pub struct Module {
    program: Arc<Program>,
    /// By name.
    kernels: HashMap<String, usize>,
}

/// What kernels of a module share.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) functions: Vec<Function>,
    /// From [`GLOBALS`] on.
    pub(crate) data: Vec<u8>,
}

/// What a GPU can be told to run.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) program: Arc<Program>,
    pub(crate) function: usize,
}

impl Module {
    /// Reads what the compiler wrote.
    ///
    /// # Errors
    /// What it does not know, and where.
    pub fn parse(text: &str) -> Result<Module, Wrong> {
        let (program, kernels) = Parser::new(text).module()?;
        Ok(Module { program: Arc::new(program), kernels })
    }

    /// The kernel of this name, as the compiler spells it.
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
