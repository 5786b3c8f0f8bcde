//! Sums of products in Einstein notation.

use super::broadcast::arrived;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "Einsum",
    inputs: &["inputs: N * T"],
    outputs: &["output: T"],
    attrs: &["equation: string", "N: int >= 1", "T: type"],
    infer: shape,
    gradient: Gradient::Defined(gradient),
    ..OpDef::NEW
}];

/// An Einstein equation: the axis labels of each input and of the output, one letter per axis; `.` stands for an
/// ellipsis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equation {
    pub inputs: Vec<Vec<char>>,
    pub output: Vec<char>,
}

impl Equation {
    /// Parses an equation such as `ab,bc->ac`.
    ///
    /// # Errors
    /// `InvalidArgument` if there is not exactly one arrow, or a term contains other characters than letters and one
    /// ellipsis.
    pub fn parse(text: &str) -> Result<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let Some((inputs, output)) = text.split_once("->") else {
            crate::invalid!("Expecting exactly one '->' in einsum equation: {text}");
        };
        let term = |term: &str| -> Result<Vec<char>> {
            let labels: Vec<char> = term.replace("...", ".").chars().collect();
            let fits = labels.iter().all(|c| c.is_ascii_alphabetic() || *c == '.');
            if !fits || labels.iter().filter(|c| **c == '.').count() > 1 {
                crate::invalid!("Invalid term '{term}' in einsum equation: {text}");
            }
            Ok(labels)
        };
        Ok(Equation { inputs: inputs.split(',').map(term).collect::<Result<_>>()?, output: term(output)? })
    }
}

/// Infers the output shape, which is known only for equations without an ellipsis in the output.
fn shape(infer: &mut Infer<'_>) -> Result<()> {
    let equation = Equation::parse(&infer.attr::<String>("equation")?)?;
    if equation.inputs.len() != infer.num_inputs() {
        crate::invalid!(
            "Expected {} inputs in the equation but got: {}",
            equation.inputs.len(),
            infer.num_inputs()
        );
    }
    if equation.output.contains(&'.') {
        return Ok(());
    }
    let size = |label: &char| -> Dim {
        (0..infer.num_inputs()).find_map(|i| {
            let at = equation.inputs[i].iter().position(|l| l == label)?;
            if equation.inputs[i].contains(&'.') { None } else { infer.input(i).dim(at) }
        })
    };
    let dims: Vec<Dim> = equation.output.iter().map(size).collect();
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}

/// Returns the gradient for two operands without ellipses, as another einsum. Each label of an operand must occur in
/// the output or the other operand.
fn gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let equation = Equation::parse(&forward.attr::<String>("equation")?)?;
    let has_repeats = |labels: &[char]| labels.iter().enumerate().any(|(i, l)| labels[..i].contains(l));
    let [a, b] = &equation.inputs[..] else {
        return Err(Error::unimplemented("the gradient of Einsum is known of two operands only"));
    };
    let terms = [a, b, &equation.output];
    let found = |label: &char, x: &[char], y: &[char]| x.contains(label) || y.contains(label);
    let plain = terms.iter().all(|t| !t.contains(&'.') && !has_repeats(t))
        && a.iter().all(|l| found(l, b, &equation.output))
        && b.iter().all(|l| found(l, a, &equation.output));
    if !plain {
        return Err(Error::unimplemented(
            "the gradient of Einsum is known only without ellipses, diagonals and sums over one operand",
        ));
    }
    let text = |labels: &[char]| labels.iter().collect::<String>();
    let back = |other: Output, labels: &[char], own: &[char]| {
        let equation = format!("{},{}->{}", text(&equation.output), text(labels), text(own));
        scope.op("Einsum").input(&[dz, scope.conj(other)][..]).attr("equation", equation.as_str()).output()
    };
    Ok(vec![Some(back(forward.input(1), b, a)), Some(back(forward.input(0), a, b))])
}
