//! A function as it is run: instructions over numbered registers.

use crate::rule::Rule;

/// Its number in a thread's registers. Constants, and what a thread is called, have registers too.
pub(crate) type Register = u32;

/// The registers that are the same in each function: a thread's number, of how many; its block's, of how many.
pub(crate) const SPECIALS: [&str; 4] = ["%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"];

#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Where its parameters are in its frame, one after the other, and how many bytes each has.
    pub(crate) parameters: Vec<Span>,
    pub(crate) result: Option<Span>,
    /// Bytes of its frame: parameters, and those of the functions that it calls.
    pub(crate) frame: usize,
    /// What registers hold at first.
    pub(crate) registers: Vec<u64>,
    /// Those that hold addresses of its own part of local memory, from 0 on.
    pub(crate) depots: Vec<Register>,
    /// Bytes of local memory.
    pub(crate) local: usize,
    /// Bytes of its block's shared memory.
    pub(crate) shared: usize,
    pub(crate) instructions: Vec<Instruction>,
}

/// A part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Instruction {
    /// It is only carried out where this register is so.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) action: Action,
    /// Where it is in the text, and what it is called there.
    pub(crate) line: usize,
    pub(crate) opcode: String,
}

#[derive(Debug)]
pub(crate) enum Action {
    Compute {
        rule: Rule,
        to: Register,
        from: [Register; 4],
    },
    /// The bits of one register in several, from the lowest on, so many in each.
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
        from: Place,
        to: Vec<Register>,
        is_signed: bool,
        is_volatile: bool,
    },
    Store {
        to: Place,
        from: Vec<Register>,
        is_volatile: bool,
    },
    /// What was there before goes into a register.
    Atomic {
        change: Change,
        at: Place,
        to: Register,
        from: [Register; 2],
    },
    Branch(usize),
    /// Arguments and the result are places in the caller's frame.
    Call {
        function: usize,
        arguments: Vec<usize>,
        result: Option<usize>,
    },
    Barrier,
    /// What the thread has written, others see from now on.
    Fence,
    Return,
}

/// Memory that an instruction names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: i64,
    /// Of one element.
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Parameters,
    Global,
    Shared,
    Local,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// With an operand.
    Of(Rule),
    Exchange,
    /// By the second operand, where there is what the first one says.
    CompareAndSwap,
}
