//! A PTX function in executable form: instructions on numbered registers.

use crate::rule::Rule;

/// The index of a register. Constants and special registers are stored in registers, too.
pub(crate) type Register = u32;

/// The special registers, which are the first registers of each function: index of the thread, threads per block, index
/// of the block, number of blocks.
pub(crate) const SPECIALS: [&str; 4] = ["%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"];

/// A function of a PTX module.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The byte ranges of the parameters in the function's frame.
    pub(crate) parameters: Vec<Span>,
    /// The byte range of the result in the function's frame.
    pub(crate) result: Option<Span>,
    /// Size in bytes of the frame, which holds the parameters of this function and of the functions that it calls.
    pub(crate) frame: usize,
    /// Initial values of the registers.
    pub(crate) registers: Vec<u64>,
    /// The registers that hold addresses in local memory, relative to the start of the function's own local memory.
    pub(crate) depots: Vec<Register>,
    /// Number of bytes of the function's local memory.
    pub(crate) local: usize,
    /// Number of bytes of a block's shared memory.
    pub(crate) shared: usize,
    pub(crate) instructions: Vec<Instruction>,
}

/// A range of bytes in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// An instruction of a function.
#[derive(Debug)]
pub(crate) struct Instruction {
    /// The register and the truth value that it must have for the instruction to be executed.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) action: Action,
    /// Line of the instruction in the PTX text.
    pub(crate) line: usize,
    /// Opcode as written in the PTX text.
    pub(crate) opcode: String,
}

/// The action of an instruction.
#[derive(Debug)]
pub(crate) enum Action {
    Compute {
        rule: Rule,
        to: Register,
        from: [Register; 4],
    },
    /// Splits a register into several values of `bits` bits each, from the lowest bits on.
    Split {
        to: Vec<Register>,
        from: Register,
        bits: u32,
    },
    Join {
        to: Register,
        from: Vec<Register>,
        bits: u32,
    },
    Load {
        from: MemoryOperand,
        to: Vec<Register>,
        is_signed: bool,
        is_volatile: bool,
    },
    Store {
        to: MemoryOperand,
        from: Vec<Register>,
        is_volatile: bool,
    },
    /// Atomically changes the value in memory at `at`; the register `to` gets the old value.
    Atomic {
        op: AtomicOp,
        at: MemoryOperand,
        to: Register,
        from: [Register; 2],
    },
    Branch(usize),
    /// Calls a function. Arguments and result are given by their offsets in the caller's frame.
    Call {
        function: usize,
        arguments: Vec<usize>,
        result: Option<usize>,
    },
    Barrier,
    /// Makes the thread's writes visible to other threads.
    Fence,
    Return,
}

/// The memory operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryOperand {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: i64,
    /// Number of bytes of one element.
    pub(crate) bytes: usize,
}

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Parameters,
    Global,
    Shared,
    Local,
}

/// The operation of an atomic instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicOp {
    /// Writes the result of a rule, applied to the old value and the operand.
    Of(Rule),
    Exchange,
    /// Writes the second operand if the old value equals the first.
    CompareAndSwap,
}
