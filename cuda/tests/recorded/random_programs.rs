//! Random graphs with branches and loops have equal results with and without CUDA graphs.

use super::Fallible;
use super::partition::Partition;
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use device::gpu_options::GpuOptions;
use graph::{Shape, Tensor};
use std::fmt::Write;

/// A sequence of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn of<'a>(&mut self, all: &'a [String]) -> &'a str {
        &all[self.below(all.len())]
    }
}

/// A random graph under construction.
struct Program {
    random: Random,
    text: String,
    names: usize,
    fetched: Vec<String>,
}

impl Program {
    /// Makes a random graph from a seed. The feeds are vectors, a boolean, and the number of loop iterations.
    fn new(seed: u64) -> Program {
        let mut program =
            Program { random: Random(seed), text: String::new(), names: 0, fetched: Vec::new() };
        for line in ["x <- float", "y <- float", "choice <- bool", "limit <- int32"] {
            program.line(line);
        }
        program.line("zero = Const[dtype=int32, value=int32<>{0}]");
        program.line("any = Const[dtype=int32, value=int32<>{-1}]");
        program.line("three = Const[dtype=int32, value=int32<1>{3}]");
        let mut values = vec!["x".to_owned(), "y".to_owned()];
        for _ in 0..1 + program.random.below(3) {
            program.some(&mut values, "choice");
        }
        let last = values.split_off(values.len().saturating_sub(2));
        last.iter().for_each(|value| program.fetch(value));
        program
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn fetch(&mut self, value: &str) {
        let name = self.name();
        self.line(&format!("{name} = Identity[T=float]({value})"));
        self.line(&format!("{name} -> float"));
        self.fetched.push(name);
    }

    /// Adds a chain of ops, a conditional or a loop, at random, that uses `values`; its results are added to
    /// `values`.
    fn some(&mut self, values: &mut Vec<String>, choice: &str) {
        match self.random.below(5) {
            0 | 1 => self.chain(values),
            2 => self.branch(values, choice),
            _ => self.turns(values, choice),
        }
    }

    fn chain(&mut self, values: &mut Vec<String>) {
        for _ in 0..1 + self.random.below(7) {
            let op = ["AddV2", "Mul", "Sub", "Maximum"][self.random.below(4)];
            let (name, a, b) =
                (self.name(), self.random.of(values).to_owned(), self.random.of(values).to_owned());
            self.line(&format!("{name} = {op}[T=float]({a}, {b})"));
            values.push(name);
        }
    }

    /// Adds a conditional on the boolean `choice`, with random ops in both branches.
    fn branch(&mut self, values: &mut Vec<String>, choice: &str) {
        let mut ends = Vec::new();
        let mut switches = Vec::new();
        for value in &values[values.len().saturating_sub(3)..] {
            let switch = self.name();
            self.line(&format!("{switch} = Switch[T=float]({value}, {choice})"));
            switches.push(switch);
        }
        for way in 0..2 {
            let mut inner: Vec<String> = switches.iter().map(|switch| format!("{switch}:{way}")).collect();
            self.chain(&mut inner);
            ends.push(inner.pop().unwrap_or_default());
        }
        let name = self.name();
        self.line(&format!("{name} = Merge[T=float, N=2]({}, {})", ends[0], ends[1]));
        values.push(name);
    }

    /// Adds a loop with two loop variables; all other values are loop invariants. The results of the iterations
    /// are collected in a list.
    fn turns(&mut self, values: &mut Vec<String>, choice: &str) {
        let name = self.name();
        let frame = format!("frame_name=\"{name}\", parallel_iterations={}", 1 + self.random.below(4));
        let mut inner = Vec::new();
        for (i, value) in values.iter().enumerate() {
            self.line(&format!("{name}/stays{i} = Enter[T=float, {frame}, is_constant=true]({value})"));
            inner.push(format!("{name}/stays{i}"));
        }
        self.line(&format!("{name}/choice = Enter[T=bool, {frame}, is_constant=true]({choice})"));
        self.line(&format!("{name}/limit = Enter[T=int32, {frame}, is_constant=true](limit)"));
        let (a, b) = (self.random.of(values).to_owned(), self.random.of(values).to_owned());
        self.line(&format!(
            "{name}/empty = EmptyTensorList[element_dtype=float, shape_type=int32](three, any)"
        ));
        let empty = format!("{name}/empty");
        let variables =
            [("i", "int32", "zero"), ("a", "float", &*a), ("b", "float", &*b), ("kept", "variant", &*empty)];
        for (var, dtype, first) in variables {
            self.line(&format!("{name}/{var}/in = Enter[T={dtype}, {frame}]({first})"));
            self.line(&format!("{name}/{var} = Merge[T={dtype}, N=2]({name}/{var}/in, {name}/{var}/next)"));
        }
        self.line(&format!("{name}/less = Less[T=int32]({name}/i, {name}/limit)"));
        self.line(&format!("{name}/more = LoopCond({name}/less)"));
        for (var, dtype, _) in variables {
            self.line(&format!("{name}/{var}/switch = Switch[T={dtype}]({name}/{var}, {name}/more)"));
        }
        self.line(&format!("{name}/at = Identity[T=int32]({name}/i/switch:1)"));
        self.line(&format!("{name}/one = Const[dtype=int32, value=int32<>{{1}}](^{name}/at)"));
        self.line(&format!("{name}/then = Add[T=int32]({name}/at, {name}/one)"));
        self.line(&format!("{name}/i/next = NextIteration[T=int32]({name}/then)"));
        inner.extend(["a", "b"].map(|var| format!("{name}/{var}/switch:1")));
        for _ in 0..1 + self.random.below(2) {
            match self.random.below(4) {
                0 => self.branch(&mut inner, &format!("{name}/choice")),
                _ => self.chain(&mut inner),
            }
        }
        let kept = inner[inner.len() - 1].clone();
        self.line(&format!(
            "{name}/push = TensorListPushBack[element_dtype=float]({name}/kept/switch:1, {kept})"
        ));
        self.line(&format!("{name}/kept/next = NextIteration[T=variant]({name}/push)"));
        self.line(&format!("{name}/kept/exit = Exit[T=variant]({name}/kept/switch)"));
        self.line(&format!("{name}/all = TensorListStack[element_dtype=float]({name}/kept/exit, three)"));
        self.line(&format!("{name}/sum = Sum[T=float, Tidx=int32]({name}/all, zero)"));
        values.push(format!("{name}/sum"));
        for var in ["a", "b"] {
            let (next, dampened) = (inner[inner.len() - 1 - self.random.below(2)].clone(), self.name());
            // Minimum keeps the values small. Its second input is dead in the last iteration.
            self.line(&format!("{dampened} = Minimum[T=float]({next}, {name}/{var}/switch:1)"));
            self.line(&format!("{name}/{var}/next = NextIteration[T=float]({dampened})"));
            self.line(&format!("{name}/{var}/exit = Exit[T=float]({name}/{var}/switch)"));
            values.push(format!("{name}/{var}/exit"));
        }
    }

    /// Runs some steps of the graph. Returns the results, the kernels that the GPU ran in each step, and the
    /// number of CUDA graph launches.
    fn run(&self, graphs: bool, executes: bool) -> Fallible<(Vec<Tensor>, Vec<Vec<String>>, usize)> {
        let options = GpuOptions { memory_fraction: 1.0, graphs, ..GpuOptions::default() };
        let driver = RecordingDriver::new(1 << 20);
        let gpu = Gpu::with_driver(if executes { driver.executing_ptx() } else { driver }, 0, &options)?;
        let partition = Partition::of_text(&self.text, &gpu.device)?;
        let fetched: Vec<&str> = self.fetched.iter().map(String::as_str).collect();
        let (mut given, mut ran, mut launched) = (Vec::new(), Vec::new(), 0);
        for step in 0..6u8 {
            let vector = |by: f32| Tensor::from_slice(&[by, by + f32::from(step), -by], Shape::new(&[3])?);
            let feeds = [
                ("x", vector(0.5)?),
                ("y", vector(-0.25)?),
                ("choice", Tensor::from(step % 3 == 0)),
                ("limit", Tensor::from(i32::from(step) % 4)),
            ];
            given.extend(partition.step(&feeds, &fetched)?);
            let log = gpu.driver.log();
            launched += log.iter().filter(|line| line.starts_with("graph of")).count();
            let mut kernels: Vec<String> = log.into_iter().filter(|line| line.starts_with("zip")).collect();
            kernels.sort();
            ran.push(kernels);
        }
        assert_eq!(gpu.driver.races(), Vec::<String>::new(), "{}", self.text);
        Ok((given, ran, launched))
    }
}

#[test]
fn random_programs_agree_with_and_without_graphs() -> Fallible {
    let mut launched = 0;
    for seed in 0..150 {
        let program = Program::new(seed);
        let executes = seed % 10 == 0;
        let (with, without) = (program.run(true, executes), program.run(false, executes));
        let at = |error| format!("seed {seed}: {error}\n{}", program.text);
        let ((with, ran_with, graphs), (without, ran_without, _)) = (with.map_err(at)?, without.map_err(at)?);
        assert_eq!(ran_with, ran_without, "seed {seed}:\n{}", program.text);
        assert!(!executes || with == without, "seed {seed}:\n{}", program.text);
        launched += graphs;
    }
    assert!(launched > 250, "only {launched}");
    Ok(())
}
