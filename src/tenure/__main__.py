"""python -m tenure"""

from tenure.cli import main

if __name__ == "__main__":
    main(prog_name="tenure")
