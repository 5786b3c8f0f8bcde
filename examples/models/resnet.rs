//! Residual networks of bottleneck blocks (He et al., "Deep Residual Learning for Image Recognition", 2015).
//! Like in most implementations, the strides are in the 3 x 3 convolutions.

use super::Layers;
use graph::Output;

/// The size of a residual network: the number of blocks in each stage, the number of filters of the first stage's
/// blocks, and the number of classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResNet {
    pub(crate) blocks: [usize; 4],
    pub(crate) width: usize,
    pub(crate) classes: usize,
}

/// Ratio of the number of channels of a block's output to the number of its filters.
const EXPANSION: usize = 4;

impl ResNet {
    /// The size of ResNet-50, with ImageNet's 1000 classes.
    pub(crate) const FIFTY: ResNet = ResNet { blocks: [3, 4, 6, 3], width: 64, classes: 1000 };

    /// Returns the scores `[n, classes]` of images.
    pub(crate) fn scores(&self, layers: &Layers<'_>, images: Output) -> Output {
        let scope = layers.scope;
        let x = layers.conv("stem", images, self.width, 7, 2);
        let x = scope.relu(layers.batch_norm("stem", x));
        let mut x = scope.max_pool(x, [3, 3], [2, 2], "SAME");
        for (stage, blocks) in self.blocks.into_iter().enumerate() {
            for block in 0..blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                x = bottleneck(
                    layers,
                    &format!("stage_{stage}/block_{block}"),
                    x,
                    self.width << stage,
                    stride,
                );
            }
        }
        layers.dense("scores", scope.mean(x, &[1, 2], false), self.classes)
    }
}

/// Adds a bottleneck block: a 1 x 1 convolution to fewer channels, a 3 x 3 convolution, and a 1 x 1 convolution to more
/// channels. The block's input, projected if its shape differs from the output's, is added to the output.
fn bottleneck(layers: &Layers<'_>, name: &str, x: Output, filters: usize, stride: i64) -> Output {
    let scope = layers.scope;
    let normal_conv = |part: &str, x, filters, size, stride| {
        let name = format!("{name}/{part}");
        layers.batch_norm(&name, layers.conv(&name, x, filters, size, stride))
    };
    let y = scope.relu(normal_conv("reduce", x, filters, 1, 1));
    let y = scope.relu(normal_conv("filter", y, filters, 3, stride));
    let y = normal_conv("expand", y, EXPANSION * filters, 1, 1);
    let is_same = stride == 1 && layers.size(x, 3) == EXPANSION * filters;
    let x = if is_same { x } else { normal_conv("project", x, EXPANSION * filters, 1, stride) };
    scope.relu(scope.add(y, x))
}
