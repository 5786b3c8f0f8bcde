//! Tests of convolutions against the definition, summed in `f64`. Gradients are checked through a property that defines
//! them, because the convolution is linear in each operand: `<dy, conv(x, w)> = <dx, x> = <dw, w>`.

use super::*;
use crate::numeric::image::{from_nhwc, to_nhwc};
use crate::testing::run_op;
use graph::{AttrValue, Code};
use half::{bf16, f16};

/// The sizes and attributes of a convolution to test.
struct Case {
    input: [usize; 4],
    filter: [usize; 4],
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: &'static str,
    /// Explicit padding before and after the image, for rows and for columns.
    explicit: [[usize; 2]; 2],
}

const CASES: &[Case] = &[
    Case { padding: "SAME", ..PLAIN },
    Case { padding: "VALID", ..PLAIN },
    Case { padding: "SAME", strides: [2, 3], ..PLAIN },
    Case { padding: "VALID", strides: [3, 1], dilations: [2, 1], ..PLAIN },
    Case { padding: "SAME", dilations: [1, 2], ..PLAIN },
    Case { padding: "EXPLICIT", explicit: [[2, 1], [0, 3]], strides: [2, 1], ..PLAIN },
    Case { input: [2, 5, 6, 4], filter: [3, 2, 2, 6], padding: "SAME", ..PLAIN },
    Case { input: [2, 5, 6, 6], filter: [3, 3, 1, 12], padding: "VALID", dilations: [2, 2], ..PLAIN },
    Case { input: [3, 4, 5, 8], filter: [1, 1, 8, 5], padding: "SAME", ..PLAIN },
    Case { input: [3, 4, 5, 8], filter: [1, 1, 4, 6], padding: "VALID", ..PLAIN },
    Case { input: [3, 4, 5, 8], filter: [1, 1, 8, 5], padding: "SAME", strides: [2, 2], ..PLAIN },
    Case { input: [1, 3, 3, 2], filter: [5, 5, 2, 3], padding: "SAME", ..PLAIN },
    // Channels that fill several cache lines; pixels between strides are not read.
    Case { input: [2, 9, 7, 48], filter: [3, 3, 48, 20], padding: "SAME", strides: [2, 1], ..PLAIN },
    Case { input: [1, 9, 8, 64], filter: [2, 1, 32, 10], padding: "SAME", strides: [3, 3], ..PLAIN },
    // Taps outside the image: with small images, with borders wider than the filter, and with taps far apart.
    Case { input: [5, 3, 3, 16], filter: [5, 5, 16, 6], padding: "SAME", ..PLAIN },
    Case {
        input: [2, 5, 6, 32],
        filter: [3, 3, 16, 16],
        padding: "EXPLICIT",
        explicit: [[4, 5], [3, 0]],
        ..PLAIN
    },
    Case { input: [2, 9, 7, 32], filter: [3, 3, 32, 64], padding: "SAME", dilations: [5, 2], ..PLAIN },
    Case { input: [3, 8, 9, 16], filter: [4, 3, 16, 32], padding: "SAME", strides: [3, 2], ..PLAIN },
    // A batch with more small images than one tile holds.
    Case { input: [19, 7, 7, 16], filter: [3, 3, 16, 24], padding: "SAME", ..PLAIN },
    // Enough work for several threads, with many images, with one image, and with a 1x1 filter.
    Case { input: [4, 20, 20, 24], filter: [3, 3, 24, 80], padding: "SAME", ..PLAIN },
    Case { input: [1, 42, 42, 24], filter: [3, 3, 24, 80], padding: "VALID", ..PLAIN },
    Case { input: [2, 32, 48, 64], filter: [1, 1, 64, 132], padding: "VALID", ..PLAIN },
];

const PLAIN: Case = Case {
    input: [2, 7, 6, 3],
    filter: [3, 2, 3, 4],
    strides: [1, 1],
    dilations: [1, 1],
    padding: "",
    explicit: [[0; 2]; 2],
};

impl Case {
    fn attrs(&self, dtype: DType, format: DataFormat) -> Vec<(&'static str, AttrValue)> {
        let list =
            |v: [usize; 2]| -> AttrValue { format.of_nhwc([1, v[0] as i64, v[1] as i64, 1]).to_vec().into() };
        let mut attrs = vec![
            ("T", dtype.into()),
            ("strides", list(self.strides)),
            ("dilations", list(self.dilations)),
            ("padding", self.padding.into()),
            ("data_format", format.to_string().into()),
        ];
        if self.padding == "EXPLICIT" {
            let pads = format.of_nhwc([[0; 2], self.explicit[0], self.explicit[1], [0; 2]]);
            let pads: Vec<i64> = pads.as_flattened().iter().map(|&p| p as i64).collect();
            attrs.push(("explicit_paddings", pads.into()));
        }
        attrs
    }

    /// Returns the output size and the padding before the image on axis 0 (rows) or 1 (columns), computed from the
    /// definition of the padding.
    fn axis(&self, axis: usize) -> [usize; 2] {
        let (input, stride) = (self.input[axis + 1], self.strides[axis]);
        let reach = (self.filter[axis] - 1) * self.dilations[axis] + 1;
        match self.padding {
            "SAME" => {
                let output = input.div_ceil(stride);
                [output, ((output - 1) * stride + reach).saturating_sub(input) / 2]
            }
            _ => {
                let [before, after] = self.explicit[axis];
                [(input + before + after - reach) / stride + 1, before]
            }
        }
    }

    fn output(&self) -> [usize; 4] {
        [self.input[0], self.axis(0)[0], self.axis(1)[0], self.filter[3]]
    }

    /// Computes the convolution by its definition, channels last.
    fn convolve(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let ([_, h, width, depth], [kh, kw, cg, outs]) = (self.input, self.filter);
        let [n, oh, ow, _] = self.output();
        let (top, left) = (self.axis(0)[1], self.axis(1)[1]);
        let per_group = outs / (depth / cg);
        let mut y = vec![0.0; n * oh * ow * outs];
        for (at, y) in y.iter_mut().enumerate() {
            let [image, row, column, o] =
                [at / outs / ow / oh, at / outs / ow % oh, at / outs % ow, at % outs];
            for i in 0..kh {
                for j in 0..kw {
                    let r = (row * self.strides[0] + i * self.dilations[0]).wrapping_sub(top);
                    let c = (column * self.strides[1] + j * self.dilations[1]).wrapping_sub(left);
                    if r < h && c < width {
                        for k in 0..cg {
                            let channel = o / per_group * cg + k;
                            *y += x[((image * h + r) * width + c) * depth + channel]
                                * w[((i * kw + j) * cg + k) * outs + o];
                        }
                    }
                }
            }
        }
        y
    }
}

/// Returns small integers, so that sums of their products are exact in `f32`.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 13) as f64 - 6.0).collect()
}

fn tensor(dtype: DType, values: &[f64], dims: &[usize]) -> Result<Tensor> {
    let shape = Shape::new(dims)?;
    Ok(match dtype {
        DType::Float => Tensor::from_slice(&values.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape)?,
        DType::Half => {
            Tensor::from_slice(&values.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>(), shape)?
        }
        DType::BFloat16 => {
            Tensor::from_slice(&values.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>(), shape)?
        }
        DType::Int32 => Tensor::from_slice(&values.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape)?,
        _ => Tensor::from_slice(values, shape)?,
    })
}

fn f64s(t: &Tensor) -> Result<Vec<f64>> {
    Ok(match t.dtype() {
        DType::Float => t.values::<f32>()?.iter().map(|&v| v.into()).collect(),
        DType::Half => t.values::<f16>()?.iter().map(|&v| v.into()).collect(),
        DType::BFloat16 => t.values::<bf16>()?.iter().map(|&v| v.into()).collect(),
        DType::Int32 => t.values::<i32>()?.iter().map(|&v| v.into()).collect(),
        _ => t.values::<f64>()?.to_vec(),
    })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn check(case: &Case, dtype: DType, format: DataFormat) -> Result<()> {
    let product = |dims: [usize; 4]| dims.iter().product::<usize>();
    let (x, w) = (numbers(product(case.input), 1), numbers(product(case.filter), 2));
    let dy = numbers(product(case.output()), 3);
    let attrs = case.attrs(dtype, format);
    let put = |values: &[f64], dims: [usize; 4]| from_nhwc(tensor(dtype, values, &dims)?, format);
    let get = |t: &Tensor| f64s(&to_nhwc(t, format)?);
    let (tx, tdy, tw) = (put(&x, case.input)?, put(&dy, case.output())?, tensor(dtype, &w, &case.filter)?);

    let y = case.convolve(&x, &w);
    let out = get(&run_op("Conv2D", &[tx.clone(), tw.clone()], &attrs)?[0])?;
    let tolerance = match dtype {
        DType::Half => 1e-3,
        DType::BFloat16 => 8e-3,
        _ => 0.0,
    };
    assert_eq!(out.len(), y.len());
    assert!(out.iter().zip(&y).all(|(a, b)| (a - b).abs() <= tolerance * b.abs()));
    if matches!(dtype, DType::Half | DType::BFloat16) {
        return Ok(());
    }

    let sizes = |dims: [usize; 4]| Tensor::try_from(dims.map(|d| d as i32));
    let inner = dot(&dy, &y);
    let shape = sizes(format.of_nhwc(case.input))?;
    let dx = run_op("Conv2DBackpropInput", &[shape, tw, tdy.clone()], &attrs)?;
    assert_eq!(dx[0].shape(), tx.shape());
    assert_eq!(dot(&get(&dx[0])?, &x), inner);
    // The gradient's product with a second operand is checked too, because one product may match by chance.
    let small = x.len() < 10_000;
    if small {
        let other = numbers(x.len(), 4);
        assert_eq!(dot(&get(&dx[0])?, &other), dot(&dy, &case.convolve(&other, &w)));
    }
    if dtype != DType::Int32 {
        let dw = run_op("Conv2DBackpropFilter", &[tx, sizes(case.filter)?, tdy], &attrs)?;
        let dw = f64s(&dw[0])?;
        assert_eq!(dot(&dw, &w), inner);
        if small {
            let other = numbers(w.len(), 5);
            assert_eq!(dot(&dw, &other), dot(&dy, &case.convolve(&x, &other)));
        }
    }
    Ok(())
}

#[test]
fn channels_last() -> Result<()> {
    CASES.iter().try_for_each(|case| check(case, DType::Float, DataFormat::Nhwc))
}

#[test]
fn channels_first() -> Result<()> {
    CASES[..12].iter().try_for_each(|case| check(case, DType::Float, DataFormat::Nchw))
}

#[test]
fn other_dtypes() -> Result<()> {
    for dtype in [DType::Double, DType::Half, DType::BFloat16, DType::Int32] {
        CASES[..8].iter().try_for_each(|case| check(case, dtype, DataFormat::Nhwc))?;
    }
    Ok(())
}

#[test]
fn empty_operands() -> Result<()> {
    let attrs = Case { padding: "VALID", ..PLAIN }.attrs(DType::Float, DataFormat::Nhwc);
    let zeros = |dims: &[usize]| Tensor::zeros(DType::Float, Shape::new(dims)?);
    let y = run_op("Conv2D", &[zeros(&[0, 7, 6, 3])?, zeros(&[3, 2, 3, 4])?], &attrs)?;
    assert_eq!(y[0].shape().dims(), [0, 5, 5, 4]);
    let y = run_op("Conv2D", &[zeros(&[1, 2, 6, 3])?, zeros(&[3, 2, 3, 4])?], &attrs)?;
    assert_eq!(y[0].shape().dims(), [1, 0, 5, 4]);
    let dw = [zeros(&[0, 7, 6, 3])?, Tensor::try_from([3i32, 2, 3, 4])?, zeros(&[0, 5, 5, 4])?];
    assert_eq!(run_op("Conv2DBackpropFilter", &dw, &attrs)?[0], zeros(&[3, 2, 3, 4])?);
    let dx = [Tensor::try_from([1i32, 2, 6, 3])?, zeros(&[3, 2, 3, 4])?, zeros(&[1, 0, 5, 4])?];
    assert_eq!(run_op("Conv2DBackpropInput", &dx, &attrs)?[0], zeros(&[1, 2, 6, 3])?);
    Ok(())
}

#[test]
fn input_sizes_may_be_rows_and_columns_only() -> Result<()> {
    let attrs = Case { padding: "VALID", ..PLAIN }.attrs(DType::Float, DataFormat::Nhwc);
    let (w, dy) = (numbers(3 * 2 * 3 * 4, 1), numbers(2 * 5 * 5 * 4, 2));
    let (w, dy) = (tensor(DType::Float, &w, &[3, 2, 3, 4])?, tensor(DType::Float, &dy, &[2, 5, 5, 4])?);
    let short =
        run_op("Conv2DBackpropInput", &[Tensor::try_from([7i32, 6])?, w.clone(), dy.clone()], &attrs)?;
    let long = run_op("Conv2DBackpropInput", &[Tensor::try_from([2i32, 7, 6, 3])?, w, dy], &attrs)?;
    assert_eq!(short, long);
    Ok(())
}

/// Convolutions whose inputs have no channels, or whose filters are empty, give zeros. Gradients of filters refuse
/// inputs without channels and sizes that do not fit.
#[test]
fn empty_operands_give_zeros() -> Result<()> {
    let ones = |dims: &[usize]| Tensor::full(1f32, Shape::new(dims)?);
    let sizes = |sizes: [i32; 4]| Tensor::vector(&sizes);
    let attrs = Case { padding: "SAME", ..PLAIN }.attrs(DType::Float, DataFormat::Nhwc);
    let cases = [
        ("Conv2D", vec![ones(&[2, 5, 6, 0])?, ones(&[3, 3, 3, 4])?], vec![2, 5, 6, 4]),
        ("Conv2D", vec![ones(&[0, 5, 6, 3])?, ones(&[3, 0, 3, 4])?], vec![0, 5, 6, 4]),
        (
            "Conv2DBackpropInput",
            vec![sizes([2, 5, 6, 3])?, ones(&[0, 3, 3, 4])?, ones(&[2, 5, 6, 4])?],
            vec![2, 5, 6, 3],
        ),
        (
            "Conv2DBackpropFilter",
            vec![ones(&[2, 5, 6, 3])?, sizes([3, 0, 3, 4])?, ones(&[2, 5, 6, 4])?],
            vec![3, 0, 3, 4],
        ),
        ("DepthwiseConv2dNative", vec![ones(&[2, 5, 6, 3])?, ones(&[3, 0, 3, 2])?], vec![2, 5, 6, 6]),
        (
            "DepthwiseConv2dNativeBackpropInput",
            vec![sizes([2, 5, 6, 3])?, ones(&[0, 3, 3, 1])?, ones(&[2, 5, 6, 3])?],
            vec![2, 5, 6, 3],
        ),
    ];
    for (op, inputs, shape) in cases {
        let out = run_op(op, &inputs, &attrs)?;
        assert_eq!(out[0].shape().dims(), shape, "{op}");
        assert!(out[0].values::<f32>()?.iter().all(|&x| x == 0.0), "{op}");
    }
    let refused = [
        ("Conv2DBackpropFilter", vec![ones(&[2, 5, 6, 0])?, sizes([3, 3, 0, 4])?, ones(&[2, 5, 6, 4])?]),
        ("Conv2DBackpropFilter", vec![ones(&[0, 5, 6, 3])?, sizes([3, 0, 3, 4])?, ones(&[0, 4, 6, 4])?]),
        (
            "DepthwiseConv2dNativeBackpropFilter",
            vec![ones(&[0, 5, 6, 3])?, sizes([3, 0, 3, 0])?, ones(&[0, 5, 6, 6])?],
        ),
    ];
    for (op, inputs) in refused {
        assert!(run_op(op, &inputs, &attrs).is_err_and(|e| e.code() == Code::InvalidArgument), "{op}");
    }
    Ok(())
}

#[test]
fn mismatched_sizes_are_refused() -> Result<()> {
    let attrs = Case { padding: "VALID", ..PLAIN }.attrs(DType::Float, DataFormat::Nhwc);
    let zeros = |dims: &[usize]| Tensor::zeros(DType::Float, Shape::new(dims)?);
    let forward = |x: &[usize], w: &[usize]| -> Result<String> {
        let out = run_op("Conv2D", &[zeros(x)?, zeros(w)?], &attrs);
        Ok(out.err().filter(|e| e.code() == Code::InvalidArgument).map(|e| e.to_string()).unwrap_or_default())
    };
    assert_eq!(
        forward(&[1, 7, 6, 3], &[3, 2, 2, 4])?,
        "input depth must be evenly divisible by filter depth: 3 vs 2"
    );
    assert!(forward(&[1, 1, 6, 3], &[3, 2, 3, 4])?.starts_with("Computed output size would be negative: -1"));
    assert!(forward(&[1, 6, 3], &[3, 2, 3, 4])?.starts_with("input must be 4-dimensional"));
    assert!(forward(&[1, 6, 3, 3], &[3, 2, 4])?.starts_with("filter must be 4-dimensional"));
    assert!(forward(&[1, 6, 3, 3], &[0, 2, 3, 4])?.starts_with("filter must not have zero elements"));
    let dx = |sizes: &[i32]| -> Result<Option<Code>> {
        let inputs = [Tensor::vector(sizes)?, zeros(&[3, 2, 3, 4])?, zeros(&[1, 5, 5, 4])?];
        Ok(run_op("Conv2DBackpropInput", &inputs, &attrs).err().map(|e| e.code()))
    };
    assert_eq!(dx(&[1, 7, 6, 3])?, None);
    for sizes in [&[1, 8, 6, 3][..], &[1, 7, 6], &[1, -7, 6, 3], &[i32::MAX; 4], &[2, 7, 6, 3]] {
        assert_eq!(dx(sizes)?, Some(Code::InvalidArgument), "{sizes:?}");
    }
    let dw = [zeros(&[1, 7, 6, 3])?, Tensor::try_from([3i32, 3, 3, 4])?, zeros(&[1, 5, 5, 4])?];
    assert!(run_op("Conv2DBackpropFilter", &dw, &attrs).is_err_and(|e| e.code() == Code::InvalidArgument));
    Ok(())
}
