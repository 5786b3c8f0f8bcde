//! A layer of long short-term memory (Hochreiter and Schmidhuber, 1997), its turns unrolled.

use super::Layers;
use graph::{DType, Output};

/// A layer's weights. Gates are in the order of input, forget, new value, output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lstm {
    /// `[k, 4 units]`
    pub(crate) inputs: Output,
    /// `[units, 4 units]`
    pub(crate) states: Output,
    /// `[4 units]`
    pub(crate) biases: Output,
}

/// What the layer of so many units says, `[n, units]`, at the end of sequences `[turns, n, k]`; and its weights.
pub(crate) fn lstm(layers: &Layers<'_>, name: &str, x: Output, units: usize) -> (Output, Lstm) {
    let scope = layers.scope;
    let [turns, n, k] = [0, 1, 2].map(|axis| layers.size(x, axis));
    let gates = 4 * units;
    let weights = Lstm {
        inputs: layers.weights(&format!("{name}/inputs"), &[k, gates], 2 * k),
        states: layers.weights(&format!("{name}/states"), &[units, gates], 2 * units),
        biases: layers.filled(&format!("{name}/biases"), gates, 0.0),
    };
    // What comes from inputs is one product for all turns.
    let flat = scope.matmul(scope.reshape(x, &[-1, k as i64]), weights.inputs);
    let given = scope.reshape(scope.bias_add(flat, weights.biases), &[turns as i64, n as i64, gates as i64]);
    let (mut state, mut memory) =
        (scope.zeros(DType::Float, &[n, units]), scope.zeros(DType::Float, &[n, units]));
    for given in scope.unpack(given, turns, 0) {
        let gates = scope.split(scope.add(given, scope.matmul(state, weights.states)), 4, 1);
        let [input, forget, new, output] = gates[..] else { break };
        let kept = scope.mul(scope.sigmoid(forget), memory);
        memory = scope.add(kept, scope.mul(scope.sigmoid(input), scope.tanh(new)));
        state = scope.mul(scope.sigmoid(output), scope.tanh(memory));
    }
    (state, weights)
}
