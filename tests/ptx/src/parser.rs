//! The parser of a PTX module: its global variables and functions.

use crate::function::{
    Action, AtomicOp, Function, Instruction, MemoryOperand, Register, SPECIALS, Space, Span,
};
use crate::module::{GLOBALS, Program};
use crate::rule::Rule;
use crate::scope::{Scopes, Symbol};
use crate::text::{ParseError, Tokens, number};
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// The state of the parser.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    tokens: Tokens<'a>,
    data: Vec<u8>,
    globals: FxHashMap<&'a str, Symbol>,
    /// Bytes of shared memory that is declared outside functions.
    shared: usize,
    functions: Vec<Function>,
    numbers: HashMap<&'a str, usize>,
    kernels: HashMap<String, usize>,
}

/// A function that is being parsed.
#[derive(Debug, Default)]
struct Body<'a> {
    function: Function,
    scopes: Scopes<'a>,
    constants: FxHashMap<u64, Register>,
    labels: FxHashMap<&'a str, usize>,
    /// Indices of branch instructions, each with the label that it branches to.
    branches: Vec<(usize, &'a str)>,
}

impl Body<'_> {
    /// Adds a register with an initial value and returns its index.
    fn register(&mut self, value: u64) -> Register {
        self.function.registers.push(value);
        self.function.registers.len() as Register - 1
    }

    /// Returns the register that holds a constant; adds the register if there is none.
    fn constant(&mut self, value: u64) -> Register {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.register(value);
        self.constants.insert(value, register);
        register
    }
}

/// A variable: name, size and alignment in bytes.
#[derive(Clone, Copy, Debug)]
struct Variable<'a> {
    name: &'a str,
    bytes: usize,
    align: usize,
}

impl Variable<'_> {
    /// Allocates the variable after the first `used` bytes of a memory, and adds its bytes to `used`.
    fn take(&self, used: &mut usize) -> Span {
        let start = used.next_multiple_of(self.align);
        *used = start + self.bytes;
        Span { start, bytes: self.bytes }
    }
}

impl<'a> Parser<'a> {
    pub(crate) fn new(text: &'a str) -> Parser<'a> {
        Parser {
            tokens: Tokens::new(text),
            data: Vec::new(),
            globals: FxHashMap::default(),
            shared: 0,
            functions: Vec::new(),
            numbers: HashMap::new(),
            kernels: HashMap::new(),
        }
    }

    /// Parses the module; returns the program, and the indices of the kernels by name.
    pub(crate) fn module(mut self) -> Result<(Program, HashMap<String, usize>), ParseError> {
        while self.tokens.peek().is_some() {
            match self.tokens.word()? {
                ".version" | ".target" | ".address_size" => drop(self.tokens.word()?),
                ".weak" | ".visible" | ".extern" => {}
                ".entry" => self.function(true)?,
                ".func" => self.function(false)?,
                ".global" | ".const" => self.global()?,
                ".shared" => {
                    let variable = self.variable()?;
                    let span = variable.take(&mut self.shared);
                    self.globals.insert(variable.name, Symbol::Shared(span.start as u64));
                    self.tokens.expect(";")?;
                }
                other => return Err(self.tokens.error(format!("{other:?} is not known here"))),
            }
        }
        Ok((Program { functions: self.functions, data: self.data }, self.kernels))
    }

    /// Parses a variable such as `.align 4 .b8 name[24]`, from the word after its address space.
    fn variable(&mut self) -> Result<Variable<'a>, ParseError> {
        let mut align = 0;
        if self.tokens.take(".align") {
            align = self.tokens.count()?;
        }
        let size = bytes_of(self.tokens.word()?).ok_or_else(|| self.tokens.error("no type"))?;
        let name = self.tokens.word()?;
        let mut count = 1;
        if self.tokens.take("[") {
            count = self.tokens.count()?;
            self.tokens.expect("]")?;
        }
        Ok(Variable { name, bytes: size * count, align: align.max(size) })
    }

    /// Parses a global variable, with an optional initial value of bytes such as `= {1, 2}`.
    fn global(&mut self) -> Result<(), ParseError> {
        let variable = self.variable()?;
        let mut used = self.data.len();
        let span = variable.take(&mut used);
        self.data.resize(used, 0);
        self.globals.insert(variable.name, Symbol::Global(GLOBALS + span.start as u64));
        if self.tokens.take("=") {
            self.tokens.expect("{")?;
            for at in span.start.. {
                let value = self.tokens.word()?;
                let byte = number(value).and_then(|value| u8::try_from(value).ok());
                let place = self.data.get_mut(at);
                match (byte, place) {
                    (Some(byte), Some(place)) => *place = byte,
                    _ => return Err(self.tokens.error(format!("{value:?} is no byte of {}", variable.name))),
                }
                if self.tokens.take("}") {
                    break;
                }
                self.tokens.expect(",")?;
            }
        }
        self.tokens.expect(";")
    }

    /// Returns the index of the function `name`, which is reserved if the function is defined later in the text.
    fn number(&mut self, name: &'a str) -> usize {
        let fresh = self.functions.len();
        let number = *self.numbers.entry(name).or_insert(fresh);
        if number == fresh {
            self.functions.push(Function::default());
        }
        number
    }

    /// Parses a function or its declaration.
    fn function(&mut self, is_kernel: bool) -> Result<(), ParseError> {
        let mut body = Body::default();
        body.scopes.open();
        for (name, &named) in &self.globals {
            body.scopes.name(name, named);
        }
        body.function.shared = self.shared;
        for name in SPECIALS {
            let register = body.register(0);
            body.scopes.name(name, Symbol::Register(register));
        }
        if !is_kernel && self.tokens.peek() == Some("(") {
            body.function.result = self.parameters(&mut body)?.pop();
        }
        let name = self.tokens.word()?;
        name.clone_into(&mut body.function.name);
        if self.tokens.peek() == Some("(") {
            body.function.parameters = self.parameters(&mut body)?;
        }
        let number = self.number(name);
        if self.tokens.take(";") {
            return Ok(());
        }
        while !self.tokens.take("{") {
            // Directives such as `.maxntid 256, 1, 1`, which limit the launch, are ignored.
            self.tokens.word()?;
        }
        // The scope of the body is nested in the scope of the parameters.
        body.scopes.open();
        while body.scopes.depth() > 1 {
            self.statement(&mut body)?;
        }
        for (at, label) in std::mem::take(&mut body.branches) {
            let &target = body
                .labels
                .get(label)
                .ok_or_else(|| self.tokens.error(format!("{name} has no label {label}")))?;
            body.function.instructions[at].action = Action::Branch(target);
        }
        self.functions[number] = body.function;
        if is_kernel {
            self.kernels.insert(name.to_owned(), number);
        }
        Ok(())
    }

    /// Parses parameters such as `(.param .u64 a, .param .align 8 .b8 b[32])`.
    fn parameters(&mut self, body: &mut Body<'a>) -> Result<Vec<Span>, ParseError> {
        let mut spans = Vec::new();
        self.tokens.expect("(")?;
        while !self.tokens.take(")") {
            self.tokens.expect(".param")?;
            spans.push(self.parameter(body)?);
            self.tokens.take(",");
        }
        Ok(spans)
    }

    /// Parses one parameter.
    fn parameter(&mut self, body: &mut Body<'a>) -> Result<Span, ParseError> {
        let variable = self.variable()?;
        let span = variable.take(&mut body.function.frame);
        body.scopes.name(variable.name, Symbol::Parameter(span.start));
        Ok(span)
    }

    /// Parses a statement of a function.
    fn statement(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        match self.tokens.word()? {
            "{" => body.scopes.open(),
            "}" => body.scopes.close(),
            ";" => {}
            ".reg" => self.registers(body)?,
            ".param" => {
                self.parameter(body)?;
                self.tokens.expect(";")?;
            }
            ".local" => {
                let variable = self.variable()?;
                let span = variable.take(&mut body.function.local);
                body.scopes.name(variable.name, Symbol::Local(span.start as u64));
                self.tokens.expect(";")?;
            }
            ".shared" => {
                let variable = self.variable()?;
                let span = variable.take(&mut body.function.shared);
                body.scopes.name(variable.name, Symbol::Shared(span.start as u64));
                self.tokens.expect(";")?;
            }
            ".pragma" => {
                self.tokens.word()?;
                self.tokens.expect(";")?;
            }
            "@" => {
                let is_so = !self.tokens.take("!");
                let register = self.register(body)?;
                let opcode = self.tokens.word()?;
                self.instruction(body, opcode, Some((register, is_so)))?;
            }
            label if self.tokens.take(":") => {
                body.labels.insert(label, body.function.instructions.len());
            }
            opcode => self.instruction(body, opcode, None)?,
        }
        Ok(())
    }

    /// Parses registers such as `.b32 %r<246>, %SP`, after `.reg`. The interpreter's registers have 64 bits, regardless
    /// of their PTX type.
    fn registers(&mut self, body: &mut Body<'a>) -> Result<(), ParseError> {
        self.tokens.word()?;
        loop {
            let name = self.tokens.word()?;
            if self.tokens.take("<") {
                let count = self.tokens.count()? as u32;
                self.tokens.expect(">")?;
                let first = body.function.registers.len() as Register;
                for _ in 0..count {
                    body.register(0);
                }
                body.scopes.row(name, first, count);
            } else {
                let register = body.register(0);
                body.scopes.name(name, Symbol::Register(register));
            }
            if self.tokens.take(";") {
                return Ok(());
            }
            self.tokens.expect(",")?;
        }
    }

    /// Parses an instruction whose opcode has been read, and adds it to the function.
    fn instruction(
        &mut self,
        body: &mut Body<'a>,
        opcode: &'a str,
        guard: Option<(Register, bool)>,
    ) -> Result<(), ParseError> {
        let line = self.tokens.line();
        let parts: Vec<&str> = opcode.split('.').collect();
        let action = match *parts {
            ["bra", ..] => {
                let label = self.tokens.word()?;
                body.branches.push((body.function.instructions.len(), label));
                Action::Branch(usize::MAX)
            }
            ["call", ..] => self.call(body)?,
            ["ret" | "exit"] => Action::Return,
            ["bar" | "barrier", "sync", ..] => {
                self.tokens.expect("0")?;
                Action::Barrier
            }
            ["membar" | "fence", ..] => Action::Fence,
            ["ld", .., dtype] => self.load(body, &parts, dtype)?,
            ["st", .., dtype] => self.store(body, &parts, dtype)?,
            ["atom", "global", op, dtype] => self.atomic(body, op, dtype)?,
            ["mov", dtype] if self.tokens.peek() == Some("{") => {
                let to = self.list(body)?;
                self.tokens.expect(",")?;
                let bits = self.share(dtype, to.len())?;
                Action::Split { to, from: self.operand(body)?, bits }
            }
            _ => {
                let to = self.register(body)?;
                self.tokens.expect(",")?;
                match *parts {
                    ["mov", dtype] if self.tokens.peek() == Some("{") => {
                        let from = self.list(body)?;
                        let bits = self.share(dtype, from.len())?;
                        Action::Join { to, from, bits }
                    }
                    _ => self.compute(body, opcode, to)?,
                }
            }
        };
        self.tokens.expect(";")?;
        let opcode = opcode.to_owned();
        body.function.instructions.push(Instruction { guard, action, line, opcode });
        Ok(())
    }

    /// Parses the operands of an instruction that computes a value.
    fn compute(&mut self, body: &mut Body<'a>, opcode: &str, to: Register) -> Result<Action, ParseError> {
        let rule = Rule::of(opcode).ok_or_else(|| self.tokens.error(format!("{opcode} is not known")))?;
        let mut from = [0; 4];
        let mut count = 0;
        loop {
            let operand = self.operand(body)?;
            *from.get_mut(count).ok_or_else(|| self.tokens.error("more than four operands"))? = operand;
            count += 1;
            if !self.tokens.take(",") {
                break;
            }
        }
        let is_right = match rule {
            Rule::One(_) => count == 1,
            Rule::Two(_) => count == 2,
            Rule::Three(_) => count == 3,
            Rule::Four(_) => count == 4,
            Rule::Carried(_) => count == 2 || count == 3,
        };
        if is_right {
            Ok(Action::Compute { rule, to, from })
        } else {
            Err(self.tokens.error(format!("{opcode} of {count} operands")))
        }
    }

    /// Parses a call such as `(retval0), function, (param0, param1)` or `function, (param0)`.
    fn call(&mut self, body: &mut Body<'a>) -> Result<Action, ParseError> {
        let mut result = None;
        if self.tokens.peek() == Some("(") {
            result = self.places(body)?.pop();
            self.tokens.expect(",")?;
        }
        let name = self.tokens.word()?;
        let function = self.number(name);
        let mut arguments = Vec::new();
        if self.tokens.take(",") {
            arguments = self.places(body)?;
        }
        Ok(Action::Call { function, arguments, result })
    }

    /// Parses a list of parameter names, and returns their offsets in the frame.
    fn places(&mut self, body: &Body<'a>) -> Result<Vec<usize>, ParseError> {
        let mut places = Vec::new();
        self.tokens.expect("(")?;
        while !self.tokens.take(")") {
            let name = self.tokens.word()?;
            match body.scopes.find(name) {
                Some(Symbol::Parameter(place)) => places.push(place),
                other => return Err(self.tokens.error(format!("{name} is {other:?}, no parameter"))),
            }
            self.tokens.take(",");
        }
        Ok(places)
    }

    /// Parses the operands of a load instruction.
    fn load(&mut self, body: &mut Body<'a>, parts: &[&str], dtype: &str) -> Result<Action, ParseError> {
        let to = if self.tokens.peek() == Some("{") { self.list(body)? } else { vec![self.register(body)?] };
        self.tokens.expect(",")?;
        let from = self.place(body, self.space(parts)?, dtype)?;
        let is_volatile = parts.contains(&"volatile");
        Ok(Action::Load { from, to, is_signed: dtype.starts_with('s'), is_volatile })
    }

    /// Parses the operands of a store instruction.
    fn store(&mut self, body: &mut Body<'a>, parts: &[&str], dtype: &str) -> Result<Action, ParseError> {
        let to = self.place(body, self.space(parts)?, dtype)?;
        self.tokens.expect(",")?;
        let from = if self.tokens.peek() == Some("{") { self.list(body)? } else { vec![self.operand(body)?] };
        Ok(Action::Store { to, from, is_volatile: parts.contains(&"volatile") })
    }

    /// Parses the operands of an atomic instruction.
    fn atomic(&mut self, body: &mut Body<'a>, op: &str, dtype: &str) -> Result<Action, ParseError> {
        let to = self.register(body)?;
        self.tokens.expect(",")?;
        let at = self.place(body, Space::Global, dtype)?;
        self.tokens.expect(",")?;
        let mut from = [self.operand(body)?, 0];
        let op = match op {
            "exch" => AtomicOp::Exchange,
            "cas" => {
                self.tokens.expect(",")?;
                from[1] = self.operand(body)?;
                AtomicOp::CompareAndSwap
            }
            other => {
                let how = if dtype.starts_with('f') { "rn." } else { "" };
                let rule = Rule::of(&format!("{other}.{how}{dtype}"));
                AtomicOp::Of(rule.ok_or_else(|| self.tokens.error(format!("atom.{other} is not known")))?)
            }
        };
        Ok(Action::Atomic { op, at, to, from })
    }

    /// Returns the address space among the parts of an opcode.
    fn space(&self, parts: &[&str]) -> Result<Space, ParseError> {
        let of = |part: &&str| match *part {
            "param" => Some(Space::Parameters),
            "global" | "const" => Some(Space::Global),
            "shared" => Some(Space::Shared),
            "local" => Some(Space::Local),
            _ => None,
        };
        parts.iter().find_map(of).ok_or_else(|| self.tokens.error("memory of no space"))
    }

    /// Parses a memory operand such as `[%rd5+-8]`.
    fn place(&mut self, body: &mut Body<'a>, space: Space, dtype: &str) -> Result<MemoryOperand, ParseError> {
        let bytes = bytes_of(dtype).ok_or_else(|| self.tokens.error(format!("{dtype} is no type")))?;
        self.tokens.expect("[")?;
        let base = self.operand(body)?;
        let mut offset = 0;
        if self.tokens.take("+") {
            let word = self.tokens.word()?;
            offset = number(word).ok_or_else(|| self.tokens.error(format!("{word} is no offset")))? as i64;
        }
        self.tokens.expect("]")?;
        Ok(MemoryOperand { space, base, offset, bytes })
    }

    /// Parses a vector of registers such as `{%r1, %r2}`.
    fn list(&mut self, body: &mut Body<'a>) -> Result<Vec<Register>, ParseError> {
        let mut all = Vec::new();
        self.tokens.expect("{")?;
        while !self.tokens.take("}") {
            all.push(self.operand(body)?);
            self.tokens.take(",");
        }
        Ok(all)
    }

    /// Returns the number of bits of each part of a type that is divided into `count` parts.
    fn share(&self, dtype: &str, count: usize) -> Result<u32, ParseError> {
        let bits = bytes_of(dtype).map(|bytes| 8 * bytes).filter(|bits| count > 0 && bits % count == 0);
        bits.map(|bits| (bits / count) as u32).ok_or_else(|| self.tokens.error(format!("{count} in {dtype}")))
    }

    /// Parses the name of a register and returns the register's index.
    fn register(&mut self, body: &Body<'a>) -> Result<Register, ParseError> {
        let name = self.tokens.word()?;
        match body.scopes.find(name) {
            Some(Symbol::Register(register)) => Ok(register),
            other => Err(self.tokens.error(format!("{name} is {other:?}, no register"))),
        }
    }

    /// Parses a register, a number, or an address; returns the register that holds the value.
    fn operand(&mut self, body: &mut Body<'a>) -> Result<Register, ParseError> {
        let word = self.tokens.word()?;
        if let Some(value) = number(word) {
            return Ok(body.constant(value));
        }
        match body.scopes.find(word) {
            Some(Symbol::Register(register)) => Ok(register),
            Some(Symbol::Parameter(place)) => Ok(body.constant(place as u64)),
            Some(Symbol::Shared(address) | Symbol::Global(address)) => Ok(body.constant(address)),
            Some(Symbol::Local(address)) => {
                let register = body.register(address);
                body.function.depots.push(register);
                Ok(register)
            }
            None => Err(self.tokens.error(format!("{word} is not known"))),
        }
    }
}

/// Returns the size of a type such as `.u64` or `u64` in bytes.
fn bytes_of(dtype: &str) -> Option<usize> {
    match dtype.trim_start_matches('.') {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" => Some(2),
        "b32" | "u32" | "s32" | "f32" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        _ => None,
    }
}
