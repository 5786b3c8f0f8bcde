//! `docs/OPS.md` agrees with the op table and the kernel tables (`UPDATE_DOCS=1` rewrites it), and the README's Python
//! program runs. (The README's Rust program is a doc test of the library.)

use crate::support::cluster::Cluster;
use crate::support::{Fallible, python};
use device::kernel::{ALL_ARGUMENTS, KernelDef};
use graph::ops::{self, Gradient};
use graph::{DType, Op, OpDef, Role};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "\
# Ops

Every op, by family: a family is one file in `graph/src/ops/` and one in `kernels/src/`. Signatures are in
the language of `graph/src/ops/spec.rs`. This file is generated: `UPDATE_DOCS=1 cargo test --test it docs` rewrites it.

- **CPU kernels**: the element types of each type attribute that a kernel takes; *any* where it takes all that the
  signature allows; *executor* for ops that the executor carries out itself; **none** for ops that graphs may hold
  and that fail by name where they run.
- **GPU kernels**: the same of `cuda/src/kernels/`; *host* where the kernel is the CPU's and its tensors stay in
  host memory, as those of `int32` do; empty where there is none, and the op goes to a CPU by soft placement.
- **gradient**: *yes*; *leaf* where none flows by nature (constants, comparisons, shapes); *none* where it is missing,
  and asking for it is an error that names the op.
- **stateful** ops are never folded, merged or duplicated.
- An op that TensorFlow has not is marked *our own*: only graphs that are built here have it, and only our servers run it.

";

fn document() -> Fallible<String> {
    let mut out = String::from(HEADER);
    let all = ops::all();
    let kernels = all.iter().filter(|op| has_kernel("CPU", op));
    let on_gpu = all.iter().filter(|op| has_kernel("GPU", op));
    let defined = all.iter().filter(|op| matches!(op.def.gradient, Gradient::Defined(_)));
    writeln!(
        out,
        "{} ops in {} families: {} run on a CPU, {} on a GPU, {} have a gradient.\n",
        all.len(),
        ops::families().len(),
        kernels.count(),
        on_gpu.count(),
        defined.count()
    )?;
    for (family, defs) in ops::families() {
        writeln!(out, "## {family}\n")?;
        writeln!(
            out,
            "| op | inputs | outputs | attributes | CPU kernels | GPU kernels | gradient | stateful |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|")?;
        let mut rows: Vec<&OpDef> = defs.iter().collect();
        rows.sort_unstable_by_key(|def| def.name);
        for def in rows {
            let op = ops::lookup(def.name).ok_or_else(|| format!("{} is not registered", def.name))?;
            writeln!(
                out,
                "| {}{} | {} | {} | {} | {} | {} | {} | {} |",
                def.name,
                if def.is_extension { " (*our own*)" } else { "" },
                code(def.inputs),
                code(def.outputs),
                code(def.attrs),
                kernels_on("CPU", op),
                kernels_on("GPU", op),
                match def.gradient {
                    Gradient::Defined(_) => "yes",
                    Gradient::Leaf => "leaf",
                    Gradient::None => "none",
                },
                if def.traits.stateful { "yes" } else { "" }
            )?;
        }
        out.push('\n');
    }
    // The document ends with a single newline.
    out.pop();
    Ok(out)
}

fn has_kernel(device_type: &str, op: &Op) -> bool {
    worker::kernel_table(device_type).is_some_and(|table| table.has_op(op))
}

fn code(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>().join("<br>")
}

/// Returns the table cell for an op's kernels on a device type: the supported element types of each type attribute, or
/// one line per kernel if a kernel restricts several attributes together.
fn kernels_on(device_type: &str, op: &Op) -> String {
    if op.role() != Role::Compute {
        return "executor".to_owned();
    }
    let of_op = worker::kernel_table(device_type).map_or(&[][..], |table| table.of_op(op.name()));
    let all = of_op.iter().filter(|kernel| kernel.mark.is_none());
    // Kernels with all arguments in host memory are listed separately.
    let (hosted, kernels): (Vec<&KernelDef>, Vec<&KernelDef>) =
        all.partition(|kernel| kernel.host_memory == ALL_ARGUMENTS);
    let types = match kernels[..] {
        [] if !hosted.is_empty() || device_type != "CPU" => String::new(),
        [] => "**none**".to_owned(),
        [kernel] if kernel.is_absent => "**none**".to_owned(),
        _ => types_of_all(&kernels),
    };
    let host = match hosted.as_slice() {
        [] => String::new(),
        hosted if kernels.is_empty() && hosted.iter().all(|kernel| kernel.types.is_empty()) => {
            "host".to_owned()
        }
        hosted => format!("{} on the host", types_of_all(hosted)),
    };
    [types, host].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("<br>")
}

fn types_of_all(kernels: &[&KernelDef]) -> String {
    let attrs: BTreeSet<&str> = kernels.iter().flat_map(|k| k.types).map(|(attr, _)| *attr).collect();
    match attrs.len() {
        0 => "any".to_owned(),
        // If every kernel restricts only one attribute, the same for all kernels, the types of all kernels are listed
        // together.
        1 if kernels.iter().all(|k| k.types.len() == 1) => {
            let types = kernels.iter().flat_map(|k| k.types).flat_map(|(_, types)| *types);
            attrs.iter().map(|attr| types_of(attr, types.clone().copied())).collect()
        }
        _ => {
            let line = |kernel: &&KernelDef| match kernel.types {
                [] => "any".to_owned(),
                types => types
                    .iter()
                    .map(|(attr, types)| types_of(attr, types.iter().copied()))
                    .collect::<Vec<_>>()
                    .join("; "),
            };
            let mut lines: Vec<String> = Vec::new();
            for line in kernels.iter().map(line) {
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
            lines.join("<br>")
        }
    }
}

fn types_of(attr: &str, types: impl Iterator<Item = DType>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for dtype in types {
        if !names.contains(&dtype.name()) {
            names.push(dtype.name());
        }
    }
    format!("{attr}: {}", names.join(", "))
}

#[test]
fn ops_document_agrees_with_the_tables() -> Fallible {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/OPS.md");
    let document = document()?;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &document)?;
    }
    let written = fs::read_to_string(&file)?;
    let mut lines = written.lines().zip(document.lines());
    let difference = lines.find(|(written, expected)| written != expected);
    assert!(
        written == document,
        "docs/OPS.md is stale: UPDATE_DOCS=1 cargo test --test it docs rewrites it. First difference: {difference:#?}"
    );
    Ok(())
}

#[test]
fn each_op_is_in_one_family() {
    let in_families: Vec<&str> = ops::families().iter().flat_map(|(_, ops)| *ops).map(|op| op.name).collect();
    let all: Vec<&str> = ops::all().iter().map(Op::name).collect();
    assert_eq!(in_families, all);
}

/// Returns the README's first code block in `language`.
fn readme(language: &str) -> Fallible<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))?;
    let start = text.split_once(&format!("```{language}\n")).ok_or("no such block")?.1;
    Ok(start.split_once("```").ok_or("the block has no end")?.0.to_owned())
}

#[test]
fn the_readmes_python_program_runs_on_a_cluster() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let mut program = readme("python")?;
    for (port, job, task) in [(2222, "ps", 0), (2223, "worker", 0), (2224, "worker", 1)] {
        let example_address = format!("localhost:{port}");
        assert!(program.contains(&example_address), "{program}");
        program = program.replace(&example_address, &cluster.address(job, task).to_string());
    }
    let mut command = Command::new(python::interpreter()?);
    let output = python::run(command.args(["-c", &program]).env("TF_CPP_MIN_LOG_LEVEL", "3"))?;
    let last = output.lines().last().unwrap_or_default();
    let numbers = last.trim_matches(['[', ']']).split(", ").map(|n| {
        // Newer versions of NumPy print numbers with their type.
        n.trim_start_matches("np.float32(").trim_end_matches(')').parse::<f64>()
    });
    let numbers = numbers.collect::<Result<Vec<_>, _>>().map_err(|e| format!("{e}: {output}"))?;
    assert!(
        numbers.len() == 2 && (numbers[0] - 0.1).abs() < 1e-2 && (numbers[1] - 0.3).abs() < 1e-2,
        "{output}"
    );
    Ok(())
}
