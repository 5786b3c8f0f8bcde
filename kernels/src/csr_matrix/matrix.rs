//! A sparse matrix, or a batch of sparse matrices of one size, in compressed rows.

use device::{Error, Result, invalid};
use graph::tensor::memory_limit;
use graph::{Code, DType, Element, Shape, Tensor, VariantObject};

/// Sparse matrices of one size. The entries of a matrix are in the order of its rows.
#[derive(Clone, Debug)]
pub(crate) struct CsrMatrix {
    /// The sizes: the number of matrices, if they are a batch, of rows and of columns.
    pub(super) sizes: Vec<usize>,
    /// The first entry of each row of each matrix, and the end of its last row, all from the start of the matrix.
    pub(super) row_pointers: Vec<i32>,
    /// The first entry of each matrix among those of all, and the end of the last.
    pub(super) starts: Vec<usize>,
    pub(super) columns: Vec<i32>,
    /// The entries of all matrices, a vector.
    pub(super) values: Tensor,
}

/// One matrix of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a, T> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pointers: &'a [i32],
    indices: &'a [i32],
    values: &'a [T],
}

impl<'a, T: Copy> Rows<'a, T> {
    /// Returns the columns and the entries of a row.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = (usize, T)> + use<'a, T> {
        let range = self.pointers[row] as usize..self.pointers[row + 1] as usize;
        let indices = self.indices[range.clone()].iter().map(|&column| column as usize);
        indices.zip(self.values[range].iter().copied())
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

/// The entries of one matrix that is being made.
#[derive(Debug)]
pub(super) struct NewMatrix<T> {
    pub(super) pointers: Vec<i32>,
    pub(super) columns: Vec<i32>,
    pub(super) values: Vec<T>,
}

impl<T> NewMatrix<T> {
    pub(super) fn new() -> NewMatrix<T> {
        NewMatrix { pointers: vec![0], columns: Vec::new(), values: Vec::new() }
    }

    pub(super) fn push(&mut self, column: usize, value: T) {
        self.columns.push(column as i32);
        self.values.push(value);
    }

    /// Ends a row.
    ///
    /// # Errors
    /// `ResourceExhausted` if the matrix has more entries than 32-bit integers count.
    pub(super) fn end_row(&mut self) -> Result<()> {
        self.pointers.push(count(self.values.len())?);
        Ok(())
    }
}

fn count(entries: usize) -> Result<i32> {
    i32::try_from(entries)
        .map_err(|_| Error::new(Code::ResourceExhausted, format!("a sparse matrix of {entries} entries")))
}

/// Checks the sizes of matrices, and that there is memory for their row pointers.
pub(super) fn check_sizes(sizes: &[usize]) -> Result<()> {
    let batch = if sizes.len() == 3 { sizes[0] } else { 1 };
    let [rows, columns] = [sizes[sizes.len() - 2], sizes[sizes.len() - 1]];
    let bytes = (rows as u128 + 1) * batch as u128 * 4 + batch as u128 * 8;
    if rows.max(columns) > i32::MAX as usize || bytes > u128::from(memory_limit()) {
        let message =
            format!("OOM when allocating {batch} sparse matrices of {rows} rows and {columns} columns");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(())
}

impl CsrMatrix {
    /// Returns the matrices with entries at `indices`, which are a matrix, a row and a column, or a row and a column.
    /// Each row has its entries in the order of the indices.
    ///
    /// # Errors
    /// `InvalidArgument` if an index is outside of the matrices, `ResourceExhausted` if there are too many rows.
    pub(super) fn of_entries(sizes: &[usize], indices: &[i64], values: Tensor) -> Result<CsrMatrix> {
        check_sizes(sizes)?;
        let rank = sizes.len();
        let (batch, rows) = (if rank == 3 { sizes[0] } else { 1 }, sizes[rank - 2]);
        let mut counts = vec![0i32; batch * (rows + 1)];
        let mut per_matrix = vec![0usize; batch];
        let mut columns = Vec::with_capacity(values.num_elements());
        for (i, index) in indices.chunks_exact(rank).enumerate() {
            if index.iter().zip(sizes).any(|(&at, &size)| usize::try_from(at).map_or(true, |at| at >= size)) {
                invalid!("Sparse index tuple indices[{i}, :] = {index:?} is out of bounds");
            }
            let matrix = if rank == 3 { index[0] as usize } else { 0 };
            let row = index[rank - 2] as usize;
            counts[matrix * (rows + 1) + row + 1] += 1;
            per_matrix[matrix] += 1;
            columns.push(index[rank - 1] as i32);
        }
        count(values.num_elements())?;
        for pointers in counts.chunks_exact_mut(rows + 1) {
            for row in 0..rows {
                pointers[row + 1] += pointers[row];
            }
        }
        let mut starts = vec![0];
        starts.extend(per_matrix.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        }));
        Ok(CsrMatrix { sizes: sizes.to_vec(), row_pointers: counts, starts, columns, values })
    }

    /// Returns the matrices of these sizes, which `matrices` has made.
    pub(super) fn of<T: Element>(sizes: &[usize], matrices: Vec<NewMatrix<T>>) -> Result<CsrMatrix> {
        let mut starts = vec![0];
        let (mut row_pointers, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for matrix in matrices {
            row_pointers.extend(matrix.pointers);
            columns.extend(matrix.columns);
            values.extend(matrix.values);
            starts.push(values.len());
        }
        Ok(CsrMatrix {
            sizes: sizes.to_vec(),
            row_pointers,
            starts,
            columns,
            values: Tensor::from_slice(&values, Shape::new(&[values.len()])?)?,
        })
    }

    pub(super) fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// Returns the number of matrices, and the numbers of their rows and columns.
    pub(super) fn extents(&self) -> [usize; 3] {
        match self.sizes[..] {
            [batch, rows, columns] => [batch, rows, columns],
            [rows, columns] => [1, rows, columns],
            _ => [0; 3],
        }
    }

    /// Returns the shape of the dense tensor with the same entries.
    pub(super) fn shape(&self) -> Result<Shape> {
        Ok(Shape::new(&self.sizes)?)
    }

    /// Returns matrix `i`.
    pub(super) fn matrix<T: Element>(&self, i: usize) -> Result<Rows<'_, T>> {
        let [_, rows, columns] = self.extents();
        let entries = self.starts[i]..self.starts[i + 1];
        Ok(Rows {
            rows,
            columns,
            pointers: self.pointers(i),
            indices: &self.columns[entries.clone()],
            values: &self.values.values::<T>()?[entries],
        })
    }

    /// Returns the row pointers of matrix `i`.
    pub(super) fn pointers(&self, i: usize) -> &[i32] {
        let len = self.extents()[1] + 1;
        &self.row_pointers[i * len..(i + 1) * len]
    }

    /// Returns all matrices.
    pub(super) fn matrices<T: Element>(&self) -> Result<Vec<Rows<'_, T>>> {
        (0..self.extents()[0]).map(|i| self.matrix(i)).collect()
    }

    /// Returns the sizes of matrices of other numbers of rows and columns.
    pub(super) fn sizes_with(&self, rows: usize, columns: usize) -> Vec<usize> {
        let mut sizes = self.sizes.clone();
        let rank = sizes.len();
        sizes[rank - 2..].copy_from_slice(&[rows, columns]);
        sizes
    }
}

impl VariantObject for CsrMatrix {
    fn type_name(&self) -> &'static str {
        "tensorflow::CSRSparseMatrix"
    }

    fn tensors(&self) -> u64 {
        5
    }
}
