//! Decoding of sequential JPEG files with a scan for each component. Each scan is decoded as a file of its own, which
//! has one component; then the components are enlarged to the size of the image and converted to colours, with the
//! arithmetic of libjpeg.

use device::{Error, Result};

/// A component of the image; factors are relative to the component with the most samples.
struct Component {
    id: u8,
    /// The sampling factors along rows and columns.
    factors: [usize; 2],
    quantization: u8,
}

/// The frame header of a file.
struct Frame {
    marker: u8,
    precision: u8,
    size: [usize; 2],
    components: Vec<Component>,
}

impl Frame {
    fn parse(marker: u8, segment: &[u8]) -> Option<Frame> {
        let &[precision, h0, h1, w0, w1, count, ref rest @ ..] = segment else { return None };
        let component = |&[id, factors, quantization]: &[u8; 3]| Component {
            id,
            factors: [usize::from(factors & 15), usize::from(factors >> 4)],
            quantization,
        };
        let components: Vec<_> = rest.as_chunks().0.iter().map(component).collect();
        let is_valid = components.len() == usize::from(count)
            && components.iter().all(|c| c.factors.iter().all(|factor| (1..=4).contains(factor)));
        let size = [u16::from_be_bytes([h0, h1]), u16::from_be_bytes([w0, w1])].map(usize::from);
        is_valid.then_some(Frame { marker, precision, size, components })
    }

    /// Returns the largest sampling factor of all components along an axis.
    fn most(&self, axis: usize) -> usize {
        self.components.iter().map(|component| component.factors[axis]).max().unwrap_or(1)
    }

    /// Returns the number of samples of a component along both axes.
    fn size_of(&self, component: &Component) -> [usize; 2] {
        [0, 1].map(|axis| (self.size[axis] * component.factors[axis]).div_ceil(self.most(axis)))
    }

    /// Returns a file with one component: `tables`, and the scan that has the component's data.
    fn file_of(&self, component: &Component, tables: &[u8], scan: &[u8], data: &[u8]) -> Vec<u8> {
        let [height, width] = self.size_of(component).map(|size| (size as u16).to_be_bytes());
        let mut file = vec![0xff, 0xd8];
        file.extend_from_slice(tables);
        file.extend_from_slice(&[0xff, self.marker, 0, 11, self.precision]);
        file.extend([height, width].as_flattened());
        file.extend_from_slice(&[1, component.id, 0x11, component.quantization]);
        file.extend_from_slice(&[0xff, 0xda, 0, 8]);
        file.extend_from_slice(scan);
        file.extend_from_slice(data);
        file.extend_from_slice(&[0xff, 0xd9]);
        file
    }
}

/// The samples of a component.
struct Plane {
    rows: usize,
    columns: usize,
    samples: Vec<u8>,
}

impl Plane {
    fn row(&self, row: usize) -> &[u8] {
        &self.samples[row * self.columns..][..self.columns]
    }

    /// Returns the plane with twice the rows: each sample is three parts of the nearest row and one part of the next
    /// nearest.
    fn with_twice_the_rows(&self) -> Vec<Vec<u16>> {
        let of_row = |row: usize| {
            let near = self.row(row / 2);
            let far = if row.is_multiple_of(2) {
                (row / 2).saturating_sub(1)
            } else {
                (row / 2 + 1).min(self.rows - 1)
            };
            near.iter().zip(self.row(far)).map(|(&near, &far)| 3 * u16::from(near) + u16::from(far)).collect()
        };
        (0..2 * self.rows).map(of_row).collect()
    }

    /// Returns the plane enlarged by `factors` along rows and columns, in at least `size` samples: by interpolation if
    /// the factors are 1 and 2, else by repetition.
    fn enlarged(self, factors: [usize; 2], size: [usize; 2]) -> Plane {
        let samples: Vec<u8> = match factors {
            [1, 1] => return self,
            [1, 2] if self.columns > 2 => {
                let wide =
                    |row| doubled(&self.row(row).iter().map(|&v| v.into()).collect::<Vec<u16>>(), 2, [1, 2]);
                (0..self.rows).flat_map(wide).collect()
            }
            [2, 2] if self.columns > 2 => {
                self.with_twice_the_rows().iter().flat_map(|row| doubled(row, 4, [8, 7])).collect()
            }
            [2, 1] => {
                let narrow = |(row, sums): (usize, Vec<u16>)| {
                    let rounding = if row.is_multiple_of(2) { 1 } else { 2 };
                    sums.into_iter().map(move |sum| ((sum + rounding) >> 2) as u8)
                };
                self.with_twice_the_rows().into_iter().enumerate().flat_map(narrow).collect()
            }
            [down, across] => {
                let sample = |row: usize| (0..self.columns * across).map(move |column| (row, column));
                let at = |(row, column): (usize, usize)| self.row(row / down)[column / across];
                (0..self.rows * down).flat_map(sample).map(at).collect()
            }
        };
        debug_assert!(self.rows * factors[0] >= size[0] && self.columns * factors[1] >= size[1]);
        Plane { rows: self.rows * factors[0], columns: self.columns * factors[1], samples }
    }
}

/// Returns a row with twice the samples: each is three parts of the nearest sample and one part of the next nearest,
/// divided by 2 to the power of `shift`. `rounding` is added to the even and to the odd samples.
fn doubled(row: &[u16], shift: u32, rounding: [u16; 2]) -> Vec<u8> {
    let last = row.len() - 1;
    let mix = |i: usize, far: usize, rounding: u16| ((3 * row[i] + row[far] + rounding) >> shift) as u8;
    (0..row.len())
        .flat_map(|i| [mix(i, i.saturating_sub(1), rounding[0]), mix(i, (i + 1).min(last), rounding[1])])
        .collect()
}

/// Decodes a file to grey levels (`channels` 1) or to red, green and blue. `decode_grey` decodes a file of one
/// component. Returns `None` if the file is damaged; the end of a file may be missing if `recovers` is true.
///
/// # Errors
/// `Unimplemented` if a scan has several components, or the file has other than three.
pub(super) fn decode(
    file: &[u8],
    channels: usize,
    recovers: bool,
    decode_grey: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>> {
    let Some(walk) = Walk::of(file, recovers)? else { return Ok(None) };
    let Some(frame) = walk.frame else { return Ok(None) };
    if frame.components.len() != 3 {
        return Err(Error::unimplemented(
            "JPEG files with a scan for each component and other than 3 components",
        ));
    }
    let mut planes = Vec::with_capacity(3);
    for component in &frame.components {
        let single = walk.files.iter().find(|(id, _)| *id == component.id).map(|(_, file)| file);
        let [rows, columns] = frame.size_of(component);
        let samples = single.and_then(|file| decode_grey(file));
        let Some(samples) = samples.filter(|samples| samples.len() == rows * columns) else {
            return Ok(None);
        };
        let factors = [0, 1].map(|axis| frame.most(axis) / component.factors[axis]);
        let is_whole = (0..2).all(|axis| factors[axis] * component.factors[axis] == frame.most(axis));
        if !is_whole {
            return Err(Error::unimplemented("JPEG files whose components have fractional sampling factors"));
        }
        planes.push(Plane { rows, columns, samples }.enlarged(factors, frame.size));
    }
    let is_rgb = match (walk.has_jfif, walk.transform) {
        (true, _) => false,
        (false, Some(transform)) => transform == 0,
        (false, None) => frame.components.iter().map(|component| component.id).eq(*b"RGB"),
    };
    let [height, width] = frame.size;
    let mut out = Vec::with_capacity(height * width * channels);
    for row in 0..height {
        let lines = [0, 1, 2].map(|i| planes[i].row(row));
        for column in 0..width {
            let sample = lines.map(|line| i32::from(line[column]));
            match (channels, is_rgb) {
                (1, false) => out.push(sample[0] as u8),
                (1, true) => out.push(grey(sample)),
                (_, false) => out.extend(rgb(sample)),
                (_, true) => out.extend(sample.map(|value| value as u8)),
            }
        }
    }
    Ok(Some(out))
}

/// Returns the luminance of red, green and blue.
fn grey([r, g, b]: [i32; 3]) -> u8 {
    ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8
}

/// Returns red, green and blue of a luminance and two differences of colour.
fn rgb([y, cb, cr]: [i32; 3]) -> [u8; 3] {
    let (cb, cr) = (cb - 128, cr - 128);
    let red = y + ((91881 * cr + 32768) >> 16);
    let green = y + ((-22554 * cb - 46802 * cr + 32768) >> 16);
    let blue = y + ((116130 * cb + 32768) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

/// The parts of a file that decoding needs.
#[derive(Default)]
struct Walk {
    frame: Option<Frame>,
    has_jfif: bool,
    /// The transformation of colours in Adobe's segment.
    transform: Option<u8>,
    /// For each scan, the identifier of its component and a file with that component only.
    files: Vec<(u8, Vec<u8>)>,
}

impl Walk {
    /// Reads all segments of a file. Returns `None` if the file is damaged. If `recovers` is true, the last scan may be cut
    /// off.
    fn of(file: &[u8], recovers: bool) -> Result<Option<Walk>> {
        let (mut walk, mut tables, mut at) = (Walk::default(), Vec::new(), 2);
        loop {
            let Some(&[0xff, marker]) = file.get(at..).and_then(|rest| rest.first_chunk::<2>()) else {
                return Ok(None);
            };
            match marker {
                0xd9 => return Ok(Some(walk)),
                0xff => {
                    at += 1;
                    continue;
                }
                0xd0..=0xd8 | 0x01 => {
                    at += 2;
                    continue;
                }
                _ => {}
            }
            let Some(length) = file.get(at + 2..).and_then(|rest| rest.first_chunk::<2>()) else {
                return Ok(None);
            };
            let end = at + 2 + usize::from(u16::from_be_bytes(*length));
            let Some(segment) = file.get(at + 4..end) else { return Ok(None) };
            match marker {
                0xc4 | 0xdb | 0xdd => tables.extend_from_slice(&file[at..end]),
                // A second frame could have another size than the one whose size was checked.
                0xc0 | 0xc1 if walk.frame.is_some() => return Ok(None),
                0xc0 | 0xc1 => walk.frame = Frame::parse(marker, segment),
                0xe0 => walk.has_jfif |= segment.starts_with(b"JFIF\0"),
                0xee if segment.starts_with(b"Adobe") => walk.transform = segment.get(11).copied(),
                0xda => {
                    let (Some(frame), &[1, id, _, _, _, _]) = (&walk.frame, segment) else {
                        return Err(Error::unimplemented(
                            "JPEG files with scans of several, but not all, components",
                        ));
                    };
                    let data = &file[end..];
                    let is_end = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7);
                    let end_of_scan = data.windows(2).position(is_end);
                    let Some(length) = end_of_scan.or(recovers.then_some(data.len())) else {
                        return Ok(None);
                    };
                    // Each file has a copy of the tables, so later scans of a component are left out.
                    let is_first = walk.files.iter().all(|(seen, _)| *seen != id);
                    let component = frame.components.iter().find(|component| component.id == id);
                    if let Some(component) = component.filter(|_| is_first) {
                        walk.files.push((id, frame.file_of(component, &tables, segment, &data[..length])));
                    }
                    if end_of_scan.is_none() {
                        return Ok(Some(walk));
                    }
                    at = end + length;
                    continue;
                }
                _ => {}
            }
            at = end;
        }
    }
}
