//! The execution of one thread of a kernel.

use crate::block::Block;
use crate::function::{Action, AtomicOp, Function, Instruction, MemoryOperand, Register, SPECIALS, Space};
use crate::module::Program;
use crate::rule::Rule;
use crate::watched::value_of;

/// The reason why a thread stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The thread waits at the barrier instruction with this index.
    Barrier(usize),
    End,
}

/// The state of a thread in a kernel or in a function that the kernel calls.
#[derive(Debug)]
pub(crate) struct Thread<'a> {
    program: &'a Program,
    function: &'a Function,
    /// Index of the thread in its block.
    number: u32,
    registers: Vec<u64>,
    /// The bytes of the frame, which holds the parameters of the function and of the functions that it calls.
    frame: Vec<u8>,
    /// Local memory of the thread: the kernel's first, then that of each called function.
    local: Vec<u8>,
    /// Index of the next instruction in the function.
    next: usize,
    /// The carry flag.
    carry: bool,
}

impl<'a> Thread<'a> {
    pub(crate) fn new(program: &'a Program, function: &'a Function) -> Thread<'a> {
        Thread {
            program,
            function,
            number: 0,
            registers: Vec::new(),
            frame: Vec::new(),
            local: Vec::new(),
            next: 0,
            carry: false,
        }
    }

    /// Prepares the thread to run as thread `number` of `block`, from the first instruction.
    pub(crate) fn start(&mut self, number: u32, block: &Block<'_, '_>, arguments: &[u8]) {
        self.number = number;
        let Function { registers, frame, local, .. } = self.function;
        self.registers.clone_from(registers);
        self.registers[..SPECIALS.len()].copy_from_slice(&block.specials(number));
        self.frame.clear();
        self.frame.extend_from_slice(arguments);
        self.frame.resize(*frame, UNWRITTEN);
        self.local.clear();
        self.local.resize(*local, UNWRITTEN);
        self.next = 0;
        self.carry = false;
    }

    /// Returns the line and opcode of the current instruction, for error messages.
    pub(crate) fn position(&self) -> String {
        match self.function.instructions.get(self.next.saturating_sub(1)) {
            Some(Instruction { line, opcode, .. }) => format!("line {line}, {opcode}"),
            None => "its end".to_owned(),
        }
    }

    /// Runs until the thread ends or reaches a barrier.
    ///
    /// # Errors
    /// A description of the current instruction's error.
    pub(crate) fn run(&mut self, block: &mut Block<'_, '_>) -> Result<StopReason, String> {
        loop {
            let at = self.next;
            let Some(Instruction { guard, action, .. }) = self.function.instructions.get(at) else {
                return Ok(StopReason::End);
            };
            self.next += 1;
            block.step()?;
            if guard.is_some_and(|(register, is_so)| (self.of(register) != 0) != is_so) {
                continue;
            }
            match action {
                Action::Barrier => return Ok(StopReason::Barrier(at)),
                Action::Return => return Ok(StopReason::End),
                action => self.act(action, block)?,
            }
        }
    }

    /// Executes the action of an instruction.
    fn act(&mut self, action: &Action, block: &mut Block<'_, '_>) -> Result<(), String> {
        match action {
            Action::Compute { rule, to, from } => {
                let value = self.compute(*rule, *from);
                self.set(*to, value);
            }
            Action::Split { to, from, bits } => {
                let value = self.of(*from);
                for (part, &register) in (0..).zip(to) {
                    self.set(register, value >> (part * bits) & ((1 << bits) - 1));
                }
            }
            Action::Join { to, from, bits } => {
                let part = |register: &Register| self.of(*register) & ((1 << bits) - 1);
                let value =
                    (0..).zip(from).fold(0, |value, (i, register)| value | part(register) << (i * bits));
                self.set(*to, value);
            }
            Action::Load { from, to, is_signed, is_volatile } => {
                let address = self.address(from, to.len())?;
                for (i, &register) in (0..).zip(to) {
                    let value = self.read(from, address + i * from.bytes as u64, *is_volatile, block)?;
                    let unused = 64 - 8 * from.bytes as u32;
                    let extended = ((value << unused) as i64 >> unused) as u64;
                    self.set(register, if *is_signed { extended } else { value });
                }
            }
            Action::Store { to, from, is_volatile } => {
                let address = self.address(to, from.len())?;
                for (i, &register) in (0..).zip(from) {
                    let value = self.of(register);
                    self.write(to, address + i * to.bytes as u64, value, *is_volatile, block)?;
                }
            }
            Action::Atomic { op, at, to, from } => {
                let address = self.address(at, 1)?;
                let [one, other] = from.map(|register| self.of(register));
                let touch = block.atomic(self.number);
                let old = block.memory.read(address, at.bytes, touch)?;
                let new = match *op {
                    AtomicOp::Of(Rule::Two(f)) => f(old, one),
                    AtomicOp::Of(rule) => return Err(format!("an atomic change by {rule:?}")),
                    AtomicOp::Exchange => one,
                    AtomicOp::CompareAndSwap if (old ^ one) << (64 - 8 * at.bytes) == 0 => other,
                    AtomicOp::CompareAndSwap => old,
                };
                block.memory.write(address, at.bytes, new, touch)?;
                match op {
                    // Kernels take locks with a compare-and-swap from 0 to 1, and release them with an exchange
                    // by 0.
                    AtomicOp::CompareAndSwap if (old, one, new) == (0, 0, 1) => block.is_locked = true,
                    AtomicOp::Exchange if new == 0 => block.is_locked = false,
                    _ => {}
                }
                self.set(*to, old);
            }
            Action::Branch(target) => self.next = *target,
            Action::Call { function, arguments, result } => {
                self.call(&self.program.functions[*function], arguments, *result, block)?;
            }
            Action::Fence | Action::Barrier | Action::Return => {}
        }
        Ok(())
    }

    /// Returns the value of a register.
    fn of(&self, register: Register) -> u64 {
        self.registers[register as usize]
    }

    /// Sets a register.
    fn set(&mut self, register: Register, value: u64) {
        self.registers[register as usize] = value;
    }

    /// Returns the result of `rule` for the values of the operand registers, and updates the carry flag.
    fn compute(&mut self, rule: Rule, [a, b, c, d]: [Register; 4]) -> u64 {
        match rule {
            Rule::One(f) => f(self.of(a)),
            Rule::Two(f) => f(self.of(a), self.of(b)),
            Rule::Three(f) => f(self.of(a), self.of(b), self.of(c)),
            Rule::Four(f) => f(self.of(a), self.of(b), self.of(c), self.of(d)),
            Rule::Carried(f) => {
                let (value, carry) = f([self.of(a), self.of(b), self.of(c)], self.carry);
                self.carry = carry;
                value
            }
        }
    }

    /// Returns the address of a memory operand with `count` elements. The address must be a multiple of the
    /// elements' total size.
    fn address(&self, operand: &MemoryOperand, count: usize) -> Result<u64, String> {
        let base = match operand.space {
            // Addresses of shared memory have 32 bits.
            Space::Shared => u64::from(self.of(operand.base) as u32),
            _ => self.of(operand.base),
        };
        let address = base.wrapping_add_signed(operand.offset);
        let bytes = (operand.bytes * count) as u64;
        if address % bytes == 0 {
            Ok(address)
        } else {
            Err(format!("{bytes} bytes at {address:#x} of {:?} memory are not aligned", operand.space))
        }
    }

    /// Reads an element of memory at the address or offset `at`.
    fn read(
        &mut self,
        operand: &MemoryOperand,
        at: u64,
        is_volatile: bool,
        block: &mut Block<'_, '_>,
    ) -> Result<u64, String> {
        let bytes = operand.bytes;
        match operand.space {
            Space::Global => block.read_global(self.program, at, bytes, self.number, is_volatile),
            Space::Shared => block.read_shared(at, bytes, self.number, is_volatile),
            Space::Parameters => part(&mut self.frame, at, bytes).map(|part| value_of(part)),
            Space::Local => part(&mut self.local, at, bytes).map(|part| value_of(part)),
        }
    }

    /// Writes an element of memory at the address or offset `at`.
    fn write(
        &mut self,
        operand: &MemoryOperand,
        at: u64,
        value: u64,
        is_volatile: bool,
        block: &mut Block<'_, '_>,
    ) -> Result<(), String> {
        let bytes = operand.bytes;
        let memory = match operand.space {
            Space::Global => return block.write_global(at, bytes, value, self.number, is_volatile),
            Space::Shared => return block.write_shared(at, bytes, value, self.number, is_volatile),
            Space::Parameters => &mut self.frame,
            Space::Local => &mut self.local,
        };
        part(memory, at, bytes)?.copy_from_slice(&value.to_le_bytes()[..bytes]);
        Ok(())
    }

    /// Runs a called function to its end, with its local memory after the caller's.
    fn call(
        &mut self,
        function: &'a Function,
        arguments: &[usize],
        result: Option<usize>,
        block: &mut Block<'_, '_>,
    ) -> Result<(), String> {
        let mut callee = Thread::new(self.program, function);
        callee.start(self.number, block, &[]);
        if arguments.len() != function.parameters.len() || result.is_some() != function.result.is_some() {
            return Err(format!("{} is called with {} arguments", function.name, arguments.len()));
        }
        for (&from, to) in arguments.iter().zip(&function.parameters) {
            let value = part(&mut self.frame, from as u64, to.bytes)?;
            callee.frame[to.start..to.start + to.bytes].copy_from_slice(value);
        }
        let before = self.local.len().next_multiple_of(16);
        callee.local = std::mem::take(&mut self.local);
        let own = callee.local.len();
        callee.local.resize(before + function.local, UNWRITTEN);
        for &register in &function.depots {
            callee.registers[register as usize] += before as u64;
        }
        let stop =
            callee.run(block).map_err(|what| format!("{}, {}: {what}", function.name, callee.position()))?;
        if stop != StopReason::End {
            return Err(format!("{} has a barrier, and was called", function.name));
        }
        self.local = callee.local;
        self.local.truncate(own);
        if let (Some(to), Some(from)) = (result, function.result) {
            let value = &callee.frame[from.start..from.start + from.bytes];
            part(&mut self.frame, to as u64, from.bytes)?.copy_from_slice(value);
        }
        Ok(())
    }
}

/// The value of unwritten bytes: NaN as a float, -1 as an integer.
pub(crate) const UNWRITTEN: u8 = 0xff;

/// Returns `bytes` bytes from offset `at` of a thread's frame or local memory.
fn part(memory: &mut [u8], at: u64, bytes: usize) -> Result<&mut [u8], String> {
    let all = memory.len();
    let range = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(bytes)?));
    let found = range.and_then(|range| memory.get_mut(range));
    found.ok_or_else(|| format!("{bytes} bytes at {at:#x} are not in its {all} bytes"))
}
