!> A rod whose conductivity grows with its temperature. Each process simulates a part of it in small steps of time, and
!> trains a surrogate meanwhile, together with the others: from a cell and its neighbours to the cell `leap` steps later.
!> At the end the surrogate takes the place of the simulation, one leap at a time. Run again, it goes on where it ended.
!>
!>     mpirun -n 2 heat_equation engine.yaml FOLDER EPISODES
program heat_equation
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use mpi
  use levin
  implicit none

  integer, parameter :: cells = 64, reach = 4, leap = 4, leaps = 25
  real(real64), parameter :: dt_over_dx2 = 0.1_real64
  type(levin_engine) :: engine
  character(len=256) :: config, folder, word
  integer :: rank, size, error, episode, episodes, i
  logical :: resumes
  real(real64) :: loss, deviation
  ! The part of the rod, with what is seen of the neighbours' parts.
  real(real64) :: u(1 - reach:cells + reach), fine(1 - reach:cells + reach)
  ! Features first, examples last.
  real(real64) :: windows(2*reach + 1, cells), changes(1, cells)

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, size, error)
  if (command_argument_count() /= 3) error stop "usage: heat_equation engine.yaml FOLDER EPISODES"
  call get_command_argument(1, config)
  call get_command_argument(2, folder)
  call get_command_argument(3, word)
  read (word, *) episodes

  call engine%create(config, communicator=MPI_COMM_WORLD)
  inquire (file=trim(folder)//"/manifest.json", exist=resumes)
  if (resumes) call engine%load_from(folder)
  if (engine%stop_requested()) continue  ! the first call restores the checkpoint
  episode = int(engine%step())/leaps
  if (rank == 0) print '(a, i0)', "from episode ", episode

  loss = 0
  do while (episode < episodes)
    call start(u, episode)
    do i = 1, leaps
      call gather_windows(u, windows)
      changes(1, :) = -u(1:cells)
      call simulate(u)
      changes(1, :) = 10*(changes(1, :) + u(1:cells))
      call engine%train(windows, changes, loss)
    end do
    episode = episode + 1
    if (mod(episode, 20) == 0) call engine%log_value("episode_loss", loss)
  end do
  call engine%save_to(folder)

  ! A start that the surrogate has never seen.
  call start(u, -1)
  fine = u
  do i = 1, leaps
    call simulate(fine)
    call gather_windows(u, windows)
    call engine%predict(windows, changes)
    u(1:cells) = u(1:cells) + changes(1, :)/10
  end do
  call relative_deviation(u, fine, deviation)
  if (rank == 0) print '(a, i0, a, es24.17, a, es24.17)', "episode ", episode, ": loss ", loss, ", deviation ", deviation
  call engine%close()
  call MPI_Finalize(error)

contains

  !> Three waves over the whole rod, which is closed at both ends.
  subroutine start(u, episode)
    real(real64), intent(out) :: u(1 - reach:)
    integer, intent(in) :: episode
    real(real64), parameter :: pi = acos(-1.0_real64)
    real(real64) :: x
    integer :: cell, wave
    u = 0
    do cell = 1, cells
      x = pi*(rank*cells + cell - 0.5_real64)/(size*cells)
      u(cell) = 0.5_real64
      do wave = 1, 3
        u(cell) = u(cell) + 0.3_real64*sin(1.3_real64*episode*wave + wave)*cos(3*wave*x)/wave
      end do
    end do
  end subroutine start

  !> Takes the cells next to this part from the neighbours; at the ends of the rod they are mirrored.
  subroutine exchange(u)
    real(real64), intent(inout) :: u(1 - reach:)
    integer :: left, right
    left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    right = merge(rank + 1, MPI_PROC_NULL, rank < size - 1)
    call MPI_Sendrecv(u(1:reach), reach, MPI_DOUBLE_PRECISION, left, 0, &
                      u(cells + 1:cells + reach), reach, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Sendrecv(u(cells + 1 - reach:cells), reach, MPI_DOUBLE_PRECISION, right, 1, &
                      u(1 - reach:0), reach, MPI_DOUBLE_PRECISION, left, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    if (left == MPI_PROC_NULL) u(1 - reach:0) = u(reach:1:-1)
    if (right == MPI_PROC_NULL) u(cells + 1:cells + reach) = u(cells:cells + 1 - reach:-1)
  end subroutine exchange

  !> `leap` small steps of time.
  subroutine simulate(u)
    real(real64), intent(inout) :: u(1 - reach:)
    real(real64) :: flow(0:cells)
    integer :: step, cell
    do step = 1, leap
      call exchange(u)
      do cell = 0, cells
        flow(cell) = (1 + 0.5_real64*(u(cell) + u(cell + 1)))*(u(cell + 1) - u(cell))
      end do
      u(1:cells) = u(1:cells) + dt_over_dx2*(flow(1:cells) - flow(0:cells - 1))
    end do
  end subroutine simulate

  subroutine gather_windows(u, windows)
    real(real64), intent(inout) :: u(1 - reach:)
    real(real64), intent(out) :: windows(:, :)
    integer :: cell
    call exchange(u)
    do cell = 1, cells
      windows(:, cell) = u(cell - reach:cell + reach)
    end do
  end subroutine gather_windows

  !> Of the whole rod, relative to how far it is from its mean.
  subroutine relative_deviation(u, fine, deviation)
    real(real64), intent(in) :: u(1 - reach:), fine(1 - reach:)
    real(real64), intent(out) :: deviation
    real(real64) :: own(3), all(3), mean
    own = [sum(fine(1:cells)), 0.0_real64, 0.0_real64]
    call MPI_Allreduce(own, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
    mean = all(1)/(size*cells)
    own = [0.0_real64, sum((u(1:cells) - fine(1:cells))**2), sum((fine(1:cells) - mean)**2)]
    call MPI_Allreduce(own, all, 3, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
    deviation = sqrt(all(2)/all(3))
  end subroutine relative_deviation

end program heat_equation
