//! Reads a module: what it holds, and its functions.

use crate::function::{Action, Change, Function, Instruction, Place, Register, SPECIALS, Space, Span};
use crate::module::{GLOBALS, Program};
use crate::rule::Rule;
use crate::scope::{Named, Scopes};
use crate::text::{Words, Wrong, number};
use rustc_hash::FxHashMap;
use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Parser<'a> {
    words: Words<'a>,
    data: Vec<u8>,
    globals: FxHashMap<&'a str, Named>,
    /// Bytes of shared memory that no function declares by itself.
    shared: usize,
    functions: Vec<Function>,
    numbers: HashMap<&'a str, usize>,
    kernels: HashMap<String, usize>,
}

/// A function that is being read.
#[derive(Debug, Default)]
struct Body<'a> {
    function: Function,
    scopes: Scopes<'a>,
    constants: FxHashMap<u64, Register>,
    labels: FxHashMap<&'a str, usize>,
    /// Instructions that branch, and where to.
    branches: Vec<(usize, &'a str)>,
}

impl Body<'_> {
    fn register(&mut self, value: u64) -> Register {
        self.function.registers.push(value);
        self.function.registers.len() as Register - 1
    }

    fn constant(&mut self, value: u64) -> Register {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.register(value);
        self.constants.insert(value, register);
        register
    }
}

/// A variable: how many bytes, and to a multiple of how many.
#[derive(Clone, Copy, Debug)]
struct Variable<'a> {
    name: &'a str,
    bytes: usize,
    align: usize,
}

impl Variable<'_> {
    /// Takes room from what is used so far.
    fn take(&self, used: &mut usize) -> Span {
        let start = used.next_multiple_of(self.align);
        *used = start + self.bytes;
        Span { start, bytes: self.bytes }
    }
}

impl<'a> Parser<'a> {
    pub(crate) fn new(text: &'a str) -> Parser<'a> {
        Parser {
            words: Words::new(text),
            data: Vec::new(),
            globals: FxHashMap::default(),
            shared: 0,
            functions: Vec::new(),
            numbers: HashMap::new(),
            kernels: HashMap::new(),
        }
    }

    /// Everything, and which functions are kernels.
    pub(crate) fn module(mut self) -> Result<(Program, HashMap<String, usize>), Wrong> {
        while self.words.peek().is_some() {
            match self.words.word()? {
                ".version" | ".target" | ".address_size" => drop(self.words.word()?),
                ".weak" | ".visible" | ".extern" => {}
                ".entry" => self.function(true)?,
                ".func" => self.function(false)?,
                ".global" | ".const" => self.global()?,
                ".shared" => {
                    let variable = self.variable()?;
                    let span = variable.take(&mut self.shared);
                    self.globals.insert(variable.name, Named::Shared(span.start as u64));
                    self.words.expect(";")?;
                }
                other => return Err(self.words.wrong(format!("{other:?} is not known here"))),
            }
        }
        Ok((Program { functions: self.functions, data: self.data }, self.kernels))
    }

    /// `.align 4 .b8 name[24]`, after the word for its space.
    fn variable(&mut self) -> Result<Variable<'a>, Wrong> {
        let mut align = 0;
        if self.words.take(".align") {
            align = self.words.count()?;
        }
        let size = bytes_of(self.words.word()?).ok_or_else(|| self.words.wrong("no type"))?;
        let name = self.words.word()?;
        let mut count = 1;
        if self.words.take("[") {
            count = self.words.count()?;
            self.words.expect("]")?;
        }
        Ok(Variable { name, bytes: size * count, align: align.max(size) })
    }

    /// `= {1, 2}` may follow, of bytes.
    fn global(&mut self) -> Result<(), Wrong> {
        let variable = self.variable()?;
        let mut used = self.data.len();
        let span = variable.take(&mut used);
        self.data.resize(used, 0);
        self.globals.insert(variable.name, Named::Global(GLOBALS + span.start as u64));
        if self.words.take("=") {
            self.words.expect("{")?;
            for at in span.start.. {
                let value = self.words.word()?;
                let byte = number(value).and_then(|value| u8::try_from(value).ok());
                let place = self.data.get_mut(at);
                match (byte, place) {
                    (Some(byte), Some(place)) => *place = byte,
                    _ => return Err(self.words.wrong(format!("{value:?} is no byte of {}", variable.name))),
                }
                if self.words.take("}") {
                    break;
                }
                self.words.expect(",")?;
            }
        }
        self.words.expect(";")
    }

    /// The number of a function that may come later.
    fn number(&mut self, name: &'a str) -> usize {
        let fresh = self.functions.len();
        let number = *self.numbers.entry(name).or_insert(fresh);
        if number == fresh {
            self.functions.push(Function::default());
        }
        number
    }

    fn function(&mut self, is_kernel: bool) -> Result<(), Wrong> {
        let mut body = Body::default();
        body.scopes.open();
        for (name, &named) in &self.globals {
            body.scopes.name(name, named);
        }
        body.function.shared = self.shared;
        for name in SPECIALS {
            let register = body.register(0);
            body.scopes.name(name, Named::Register(register));
        }
        if !is_kernel && self.words.peek() == Some("(") {
            body.function.result = self.parameters(&mut body)?.pop();
        }
        let name = self.words.word()?;
        name.clone_into(&mut body.function.name);
        if self.words.peek() == Some("(") {
            body.function.parameters = self.parameters(&mut body)?;
        }
        let number = self.number(name);
        if self.words.take(";") {
            return Ok(());
        }
        while !self.words.take("{") {
            // `.maxntid 256, 1, 1`: what the launch keeps to.
            self.words.word()?;
        }
        // Within the scope of its parameters.
        body.scopes.open();
        while body.scopes.depth() > 1 {
            self.statement(&mut body)?;
        }
        for (at, label) in std::mem::take(&mut body.branches) {
            let &target = body
                .labels
                .get(label)
                .ok_or_else(|| self.words.wrong(format!("{name} has no label {label}")))?;
            body.function.instructions[at].action = Action::Branch(target);
        }
        self.functions[number] = body.function;
        if is_kernel {
            self.kernels.insert(name.to_owned(), number);
        }
        Ok(())
    }

    /// `(.param .u64 a, .param .align 8 .b8 b[32])`.
    fn parameters(&mut self, body: &mut Body<'a>) -> Result<Vec<Span>, Wrong> {
        let mut spans = Vec::new();
        self.words.expect("(")?;
        while !self.words.take(")") {
            self.words.expect(".param")?;
            spans.push(self.parameter(body)?);
            self.words.take(",");
        }
        Ok(spans)
    }

    fn parameter(&mut self, body: &mut Body<'a>) -> Result<Span, Wrong> {
        let variable = self.variable()?;
        let span = variable.take(&mut body.function.frame);
        body.scopes.name(variable.name, Named::Parameter(span.start));
        Ok(span)
    }

    fn statement(&mut self, body: &mut Body<'a>) -> Result<(), Wrong> {
        match self.words.word()? {
            "{" => body.scopes.open(),
            "}" => body.scopes.close(),
            ";" => {}
            ".reg" => self.registers(body)?,
            ".param" => {
                self.parameter(body)?;
                self.words.expect(";")?;
            }
            ".local" => {
                let variable = self.variable()?;
                let span = variable.take(&mut body.function.local);
                body.scopes.name(variable.name, Named::Local(span.start as u64));
                self.words.expect(";")?;
            }
            ".shared" => {
                let variable = self.variable()?;
                let span = variable.take(&mut body.function.shared);
                body.scopes.name(variable.name, Named::Shared(span.start as u64));
                self.words.expect(";")?;
            }
            ".pragma" => {
                self.words.word()?;
                self.words.expect(";")?;
            }
            "@" => {
                let is_so = !self.words.take("!");
                let register = self.register(body)?;
                let opcode = self.words.word()?;
                self.instruction(body, opcode, Some((register, is_so)))?;
            }
            label if self.words.take(":") => {
                body.labels.insert(label, body.function.instructions.len());
            }
            opcode => self.instruction(body, opcode, None)?,
        }
        Ok(())
    }

    /// `.b32 %r<246>, %SP`, after `.reg`. Whatever their type, they are of 64 bits here.
    fn registers(&mut self, body: &mut Body<'a>) -> Result<(), Wrong> {
        self.words.word()?;
        loop {
            let name = self.words.word()?;
            if self.words.take("<") {
                let count = self.words.count()? as u32;
                self.words.expect(">")?;
                let first = body.function.registers.len() as Register;
                for _ in 0..count {
                    body.register(0);
                }
                body.scopes.row(name, first, count);
            } else {
                let register = body.register(0);
                body.scopes.name(name, Named::Register(register));
            }
            if self.words.take(";") {
                return Ok(());
            }
            self.words.expect(",")?;
        }
    }

    fn instruction(
        &mut self,
        body: &mut Body<'a>,
        opcode: &'a str,
        guard: Option<(Register, bool)>,
    ) -> Result<(), Wrong> {
        let line = self.words.line();
        let parts: Vec<&str> = opcode.split('.').collect();
        let action = match *parts {
            ["bra", ..] => {
                let label = self.words.word()?;
                body.branches.push((body.function.instructions.len(), label));
                Action::Branch(usize::MAX)
            }
            ["call", ..] => self.call(body)?,
            ["ret" | "exit"] => Action::Return,
            ["bar" | "barrier", "sync", ..] => {
                self.words.expect("0")?;
                Action::Barrier
            }
            ["membar" | "fence", ..] => Action::Fence,
            ["ld", .., dtype] => self.load(body, &parts, dtype)?,
            ["st", .., dtype] => self.store(body, &parts, dtype)?,
            ["atom", "global", change, dtype] => self.atomic(body, change, dtype)?,
            ["mov", dtype] if self.words.peek() == Some("{") => {
                let to = self.list(body)?;
                self.words.expect(",")?;
                let bits = self.share(dtype, to.len())?;
                Action::Split { to, from: self.operand(body)?, bits }
            }
            _ => {
                let to = self.register(body)?;
                self.words.expect(",")?;
                match *parts {
                    ["mov", dtype] if self.words.peek() == Some("{") => {
                        let from = self.list(body)?;
                        let bits = self.share(dtype, from.len())?;
                        Action::Join { to, from, bits }
                    }
                    _ => self.compute(body, opcode, to)?,
                }
            }
        };
        self.words.expect(";")?;
        let opcode = opcode.to_owned();
        body.function.instructions.push(Instruction { guard, action, line, opcode });
        Ok(())
    }

    fn compute(&mut self, body: &mut Body<'a>, opcode: &str, to: Register) -> Result<Action, Wrong> {
        let rule = Rule::of(opcode).ok_or_else(|| self.words.wrong(format!("{opcode} is not known")))?;
        let mut from = [0; 4];
        let mut count = 0;
        loop {
            let operand = self.operand(body)?;
            *from.get_mut(count).ok_or_else(|| self.words.wrong("more than four operands"))? = operand;
            count += 1;
            if !self.words.take(",") {
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
            Err(self.words.wrong(format!("{opcode} of {count} operands")))
        }
    }

    /// `(retval0), function, (param0, param1)`, or `function, (param0)`.
    fn call(&mut self, body: &mut Body<'a>) -> Result<Action, Wrong> {
        let mut result = None;
        if self.words.peek() == Some("(") {
            result = self.places(body)?.pop();
            self.words.expect(",")?;
        }
        let name = self.words.word()?;
        let function = self.number(name);
        let mut arguments = Vec::new();
        if self.words.take(",") {
            arguments = self.places(body)?;
        }
        Ok(Action::Call { function, arguments, result })
    }

    /// Places in the frame.
    fn places(&mut self, body: &Body<'a>) -> Result<Vec<usize>, Wrong> {
        let mut places = Vec::new();
        self.words.expect("(")?;
        while !self.words.take(")") {
            let name = self.words.word()?;
            match body.scopes.find(name) {
                Some(Named::Parameter(place)) => places.push(place),
                other => return Err(self.words.wrong(format!("{name} is {other:?}, no parameter"))),
            }
            self.words.take(",");
        }
        Ok(places)
    }

    fn load(&mut self, body: &mut Body<'a>, parts: &[&str], dtype: &str) -> Result<Action, Wrong> {
        let to = if self.words.peek() == Some("{") { self.list(body)? } else { vec![self.register(body)?] };
        self.words.expect(",")?;
        let from = self.place(body, self.space(parts)?, dtype)?;
        let is_volatile = parts.contains(&"volatile");
        Ok(Action::Load { from, to, is_signed: dtype.starts_with('s'), is_volatile })
    }

    fn store(&mut self, body: &mut Body<'a>, parts: &[&str], dtype: &str) -> Result<Action, Wrong> {
        let to = self.place(body, self.space(parts)?, dtype)?;
        self.words.expect(",")?;
        let from = if self.words.peek() == Some("{") { self.list(body)? } else { vec![self.operand(body)?] };
        Ok(Action::Store { to, from, is_volatile: parts.contains(&"volatile") })
    }

    fn atomic(&mut self, body: &mut Body<'a>, change: &str, dtype: &str) -> Result<Action, Wrong> {
        let to = self.register(body)?;
        self.words.expect(",")?;
        let at = self.place(body, Space::Global, dtype)?;
        self.words.expect(",")?;
        let mut from = [self.operand(body)?, 0];
        let change = match change {
            "exch" => Change::Exchange,
            "cas" => {
                self.words.expect(",")?;
                from[1] = self.operand(body)?;
                Change::CompareAndSwap
            }
            other => {
                let how = if dtype.starts_with('f') { "rn." } else { "" };
                let rule = Rule::of(&format!("{other}.{how}{dtype}"));
                Change::Of(rule.ok_or_else(|| self.words.wrong(format!("atom.{other} is not known")))?)
            }
        };
        Ok(Action::Atomic { change, at, to, from })
    }

    fn space(&self, parts: &[&str]) -> Result<Space, Wrong> {
        let of = |part: &&str| match *part {
            "param" => Some(Space::Parameters),
            "global" | "const" => Some(Space::Global),
            "shared" => Some(Space::Shared),
            "local" => Some(Space::Local),
            _ => None,
        };
        parts.iter().find_map(of).ok_or_else(|| self.words.wrong("memory of no space"))
    }

    /// `[%rd5+-8]`.
    fn place(&mut self, body: &mut Body<'a>, space: Space, dtype: &str) -> Result<Place, Wrong> {
        let bytes = bytes_of(dtype).ok_or_else(|| self.words.wrong(format!("{dtype} is no type")))?;
        self.words.expect("[")?;
        let base = self.operand(body)?;
        let mut offset = 0;
        if self.words.take("+") {
            let word = self.words.word()?;
            offset = number(word).ok_or_else(|| self.words.wrong(format!("{word} is no offset")))? as i64;
        }
        self.words.expect("]")?;
        Ok(Place { space, base, offset, bytes })
    }

    /// `{%r1, %r2}`.
    fn list(&mut self, body: &mut Body<'a>) -> Result<Vec<Register>, Wrong> {
        let mut all = Vec::new();
        self.words.expect("{")?;
        while !self.words.take("}") {
            all.push(self.operand(body)?);
            self.words.take(",");
        }
        Ok(all)
    }

    /// Bits of each of so many that make up a type.
    fn share(&self, dtype: &str, count: usize) -> Result<u32, Wrong> {
        let bits = bytes_of(dtype).map(|bytes| 8 * bytes).filter(|bits| count > 0 && bits % count == 0);
        bits.map(|bits| (bits / count) as u32).ok_or_else(|| self.words.wrong(format!("{count} in {dtype}")))
    }

    fn register(&mut self, body: &Body<'a>) -> Result<Register, Wrong> {
        let name = self.words.word()?;
        match body.scopes.find(name) {
            Some(Named::Register(register)) => Ok(register),
            other => Err(self.words.wrong(format!("{name} is {other:?}, no register"))),
        }
    }

    /// A register, a number, or an address.
    fn operand(&mut self, body: &mut Body<'a>) -> Result<Register, Wrong> {
        let word = self.words.word()?;
        if let Some(value) = number(word) {
            return Ok(body.constant(value));
        }
        match body.scopes.find(word) {
            Some(Named::Register(register)) => Ok(register),
            Some(Named::Parameter(place)) => Ok(body.constant(place as u64)),
            Some(Named::Shared(address) | Named::Global(address)) => Ok(body.constant(address)),
            Some(Named::Local(address)) => {
                let register = body.register(address);
                body.function.depots.push(register);
                Ok(register)
            }
            None => Err(self.words.wrong(format!("{word} is not known"))),
        }
    }
}

/// Of a type: `.u64` or `u64`.
fn bytes_of(dtype: &str) -> Option<usize> {
    match dtype.trim_start_matches('.') {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" => Some(2),
        "b32" | "u32" | "s32" | "f32" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        _ => None,
    }
}
