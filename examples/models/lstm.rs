//! A layer of long short-term memory (Hochreiter and Schmidhuber, 1997), unrolled over time.

use super::Layers;
use graph::{DType, Output};

/// The weights of an LSTM layer. The gates are in the order input, forget, new value, output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lstm {
    /// The weights of the inputs, `[k, 4 units]`.
    pub(crate) inputs: Output,
    /// The weights of the previous output, `[units, 4 units]`.
    pub(crate) states: Output,
    /// The biases of the gates, `[4 units]`.
    pub(crate) biases: Output,
}

/// Adds an LSTM layer over sequences `[steps, n, k]`. Returns its last output, `[n, units]`, and its weights.
pub(crate) fn lstm(layers: &Layers<'_>, name: &str, x: Output, units: usize) -> (Output, Lstm) {
    let scope = layers.scope;
    let [steps, n, k] = [0, 1, 2].map(|axis| layers.size(x, axis));
    let gates = 4 * units;
    let weights = Lstm {
        inputs: layers.weights(&format!("{name}/inputs"), &[k, gates], 2 * k),
        states: layers.weights(&format!("{name}/states"), &[units, gates], 2 * units),
        biases: layers.constant_vector(&format!("{name}/biases"), gates, 0.0),
    };
    // One product multiplies the inputs of all time steps by the weights.
    let flat = scope.matmul(scope.reshape(x, &[-1, k as i64]), weights.inputs);
    let given = scope.reshape(scope.bias_add(flat, weights.biases), &[steps as i64, n as i64, gates as i64]);
    let (mut state, mut memory) =
        (scope.zeros(DType::Float, &[n, units]), scope.zeros(DType::Float, &[n, units]));
    for given in scope.unpack(given, steps, 0) {
        let gates = scope.split(scope.add(given, scope.matmul(state, weights.states)), 4, 1);
        let [input, forget, new, output] = gates[..] else { break };
        let kept = scope.mul(scope.sigmoid(forget), memory);
        memory = scope.add(kept, scope.mul(scope.sigmoid(input), scope.tanh(new)));
        state = scope.mul(scope.sigmoid(output), scope.tanh(memory));
    }
    (state, weights)
}
