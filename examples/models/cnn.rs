//! A small convolutional network for small images, like those of tutorials on handwritten digits.

use super::Layers;
use graph::Output;

/// Returns the scores `[n, classes]` of images: two blocks of convolution and 2 x 2 max pooling, then two
/// dense layers.
pub(crate) fn small_cnn(layers: &Layers<'_>, images: Output, filters: usize, classes: usize) -> Output {
    let scope = layers.scope;
    let block = |name: &str, x, filters| {
        let x = layers.add_bias(name, layers.conv(name, x, filters, 5, 1));
        scope.max_pool(scope.relu(x), [2, 2], [2, 2], "SAME")
    };
    let x = block("conv_1", images, filters);
    let x = block("conv_2", x, 2 * filters);
    let places: usize = (1..4).map(|axis| layers.size(x, axis)).product();
    let x = scope.reshape(x, &[-1, places as i64]);
    let x = scope.relu(layers.dense("hidden", x, 16 * filters));
    layers.dense("scores", x, classes)
}
